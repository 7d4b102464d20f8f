"""Replays a fault with real processes on a real database, in every way to prevent it, and says what came of it."""


class ReplayError(Exception):
    """A process of the replay died or did not do what it should; says nothing about the locks."""
