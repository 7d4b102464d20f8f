"""What a view sees: ``request.idempotency``."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from . import decisions

if TYPE_CHECKING:
    from .execution import Answering
    from .job import Job
    from .options import Options


class Idempotency:
    """The key of this request. Without one it is false, remembers nothing, and derives a new key each time, so that a
    view needs no branches.

    ``key`` is the client's key, or None.
    """

    def __init__(self) -> None:
        self.job: Job | None = None
        self.options: Options | None = None  # those that the middleware has acted upon
        self.begun = False  # a claim has been asked for
        self.answering: Answering | None = None  # what the decorator answers, when those above it have been asked

    def __bool__(self) -> bool:
        return self.key is not None

    @property
    def key(self) -> str | None:
        """The client's key, or None."""
        return None if self.job is None else self.job.key

    def derive(self, name: str) -> str:
        """A key for another service, 64 hexadecimal digits: the same each time this request arrives, another one for
        each name. It says nothing of the client's key."""
        if self.job is None:
            return secrets.token_hex(32)
        return decisions.derived_key(self.job.site_key, self.job.scope, name)

    def phase(self, name: str) -> Phase:
        """A step that is not repeated when the request arrives again after a crash or a server error.

        ::

            with request.idempotency.phase("charge") as charge:
                if not charge.done:
                    charge.result = payments.charge(order, idempotency_key=charge.key)

        ``async with`` in async views. The result is kept as JSON when the block ends without an exception.
        """
        return Phase(self, name)

    def keep(self) -> None:
        """This answer is the last word, though it is the page of a form and no redirect: the key is used up."""
        if self.job is not None:
            self.job.kept = True


class IdempotentRequest(HttpRequest):
    """For annotations: the request of a view below the middleware, or under ``@idempotent``.

    Requests are no instances of it: Django makes them, and the middleware gives them the attribute.
    """

    idempotency: Idempotency


class Phase:
    """``done``: an earlier attempt has finished it, and ``result`` is what it left. ``key``: for the service that it
    calls."""

    def __init__(self, idempotency: Idempotency, name: str) -> None:
        self._idempotency = idempotency
        self.name = name
        self.key = idempotency.derive(name)
        known = {} if idempotency.job is None else idempotency.job.phases
        self.done = name in known
        self.result: Any = known.get(name)

    def _save(self) -> None:
        job = self._idempotency.job
        if job is None or self.done:
            return
        phases = {**job.phases, self.name: self.result}
        text = json.dumps(phases)
        if job.running and not job.storage.save_phases(job.claim, text):
            from django_distlock import LockLost

            raise LockLost(f"The claim was lost before the phase {self.name!r} could be noted.")
        job.phases, self.done = phases, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._save()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await sync_to_async(self._save)()
