"""Django signals about idempotency keys.

The sender is :class:`~django_distlock.idempotency.handle.Idempotency`. Every signal has ``request``, ``scope`` (a hash,
the same for the same key of the same principal on the same route) and ``route``. Django logs the
exception of a receiver, and the request continues.

* ``key_claimed``: the view is about to run
* ``key_replayed``: a stored answer was given
* ``key_conflict``: another request with this key is still running
* ``key_mismatch``: the key belongs to a request with other data
* ``key_expired``: a claim expired, most likely because its process died
* ``key_tombstone``: the request was carried out before, and its answer is not stored
"""

from __future__ import annotations

from django.dispatch import Signal

key_claimed = Signal()
key_replayed = Signal()
key_conflict = Signal()
key_mismatch = Signal()
key_expired = Signal()
key_tombstone = Signal()
