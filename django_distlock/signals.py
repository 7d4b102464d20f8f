"""Django signals about locks.

The sender is the class of the backend. Every signal has ``name`` (str), ``using`` (the alias) and ``template``: the
name as a decorator has it (``"account:{pk}"``), None for other names. Further arguments:

* ``lock_acquired``: ``wait`` and ``hold`` (seconds), ``fence`` (int or None)
* ``lock_released``: ``hold``, ``fence``
* ``lock_timed_out``: ``wait``
* ``lock_failed``: ``wait``, ``error`` (the exception: deadlock, backend unavailable, cancelled, ...)
* ``lock_lost``: ``hold``, ``fence``, ``reason`` ("expired", "session", "savepoint", "transaction", "stolen",
  "unreachable", ...)
* ``lock_broken``: ``reason``; sent in the process that breaks the lock

An error of a receiver is logged and changes nothing. Acquiring a lock again that the caller holds sends nothing.
"""

from __future__ import annotations

from django.dispatch import Signal

lock_acquired = Signal()
lock_released = Signal()
lock_timed_out = Signal()
lock_failed = Signal()
lock_lost = Signal()
lock_broken = Signal()
