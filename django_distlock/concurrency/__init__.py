"""Deadlines, waiting, threads and sockets. Standard library only: no Django, and nothing about locks."""
