"""Django signals about edit locks, for audits and logs. An error of a receiver is logged and changes nothing.

The sender is :class:`~django_distlock.editing.records.EditLease`. Every signal has ``resource``.

* ``edit_taken_over``: ``owner`` took the lock from the holder of ``before`` (None if it was free); ``lease``,
  ``reason``
* ``edit_overridden``: code wrote with ``edit_lock(override=True)`` although ``before`` was held; ``owner``, ``lease``
* ``edit_refused``: a save was refused; ``conflict`` is the :class:`~django_distlock.editing.EditConflict`, ``owner``
* ``edit_broken``: an operator ended the lease ``before``; ``reason``
"""

from __future__ import annotations

from django.dispatch import Signal

edit_taken_over = Signal()
edit_overridden = Signal()
edit_refused = Signal()
edit_broken = Signal()
