"""Fenced writes: the database refuses the late write of a holder whose lease has ended."""
