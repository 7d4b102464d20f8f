"""What happens to locks, as Django signals.

The sender is the class of the backend. Every signal has ``name`` (str), ``using`` (the alias) and ``template``: the
name as it is written in a decorator (``"account:{pk}"``), None where the name was made elsewhere. Besides

* ``lock_acquired``: ``wait`` and ``hold`` (seconds), ``fence`` (int or None)
* ``lock_released``: ``hold``, ``fence``
* ``lock_timed_out``: ``wait``
* ``lock_failed``: ``wait``, ``error`` (the exception: deadlock, backend unavailable, cancelled, ...)
* ``lock_lost``: ``hold``, ``fence``, ``reason`` ("expired", "session", "savepoint", "transaction", "stolen",
  "unreachable", ...)
* ``lock_broken``: ``reason``; sent by whoever breaks a lock

A receiver that fails is logged and changes nothing. Re-entries send nothing: the engine is not asked.
"""

from __future__ import annotations

from django.dispatch import Signal

lock_acquired = Signal()
lock_released = Signal()
lock_timed_out = Signal()
lock_failed = Signal()
lock_lost = Signal()
lock_broken = Signal()
