"""The scenes of the demo that show browser locks."""
