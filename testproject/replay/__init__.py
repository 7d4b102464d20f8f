"""Fires concurrent sign-ups at a real multi-process server and reports what happened."""
