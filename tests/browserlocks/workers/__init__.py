"""The mutex of workers."""
