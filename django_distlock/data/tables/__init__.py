"""Table locks."""
