"""``request.idempotency``: one attempt at a request with a key."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse

from django_distlock import LockLost

from . import decisions

if TYPE_CHECKING:
    from django_distlock.schema import Tenant

    from .conf import Options
    from .http.requests import Principal, Source
    from .records import KeyClaim
    from .storage import Storage

# Makes the answer that replaces the view's. It may block.
MakeResponse = Callable[[], HttpResponse]


@dataclass(slots=True, kw_only=True, eq=False)
class KeyedRequest:
    """One request with a key, from the claim to the stored answer.

    ``alias`` is the database of the exactly-once mode, else None.
    """

    request: HttpRequest
    options: Options
    source: Source
    key: str
    principal: Principal
    claim: KeyClaim
    html: bool
    site_key: str
    storage: Storage
    alias: str | None
    tenant: Tenant  # that of the request, for threads
    tries: int = 0
    running: bool = False
    broken: bool = False  # the storage failed in the caller's transaction
    kept: bool = False  # the view has called keep()
    outcome_unknown: bool | None = None  # another middleware has failed, and the view may have acted; False: the view
    phases: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Idempotency:
    """The key of this request.

    Without a key it is false, remembers nothing, and derives another key each time: the view needs no branches.
    """

    attempt: KeyedRequest | None = None
    served: bool = False  # the middleware has taken the view for one without a decorator
    has_middleware: bool = False
    late: bool = False  # the middleware stores the answer of a decorated view

    def __bool__(self) -> bool:
        return self.key is not None

    @property
    def key(self) -> str | None:
        """The client's key, or None."""
        return None if self.attempt is None else self.attempt.key

    def derive(self, name: str) -> str:
        """Derive a key for another service: 64 hexadecimal digits.

        It is the same each time this request arrives, differs for each name, and does not reveal the client's key.
        """
        if self.attempt is None:
            return secrets.token_hex(32)
        return decisions.keyed(self.attempt.site_key, "derived", self.attempt.claim.scope, name)

    def phase(self, name: str) -> Phase:
        """A step that is not repeated when the request arrives again after a crash or a server error.

        ::

            with request.idempotency.phase("charge") as charge:
                if not charge.done:
                    charge.result = payments.charge(order, idempotency_key=charge.key)

        ``async with`` in async views. The result is stored as JSON when the block ends without an exception.
        """
        return Phase(self, name)

    def keep(self) -> None:
        """Store this answer although it is the page of a form and no redirect: the key is used up."""
        if self.attempt is not None:
            self.attempt.kept = True


class IdempotentRequest(HttpRequest):
    """For annotations: the request of a view below the middleware, or under ``@idempotent``.

    No request is an instance of it: Django creates the request, and the middleware adds the attribute.
    """

    idempotency: Idempotency


class Phase:
    """One step of a view.

    ``done``: an earlier attempt has finished it, and ``result`` is what it stored. ``key``: for the service that the
    step calls.
    """

    def __init__(self, idempotency: Idempotency, name: str) -> None:
        self._attempt = idempotency.attempt
        self.name = name
        self.key = idempotency.derive(name)
        known = {} if self._attempt is None else self._attempt.phases
        self.done = name in known
        self.result: Any = known.get(name)

    def _save(self) -> None:
        if (attempt := self._attempt) is None or self.done:
            return
        phases = {**attempt.phases, self.name: self.result}
        text = json.dumps(phases)
        if attempt.running and not attempt.storage.save_phases(attempt.claim, text):
            raise LockLost(f"The claim was lost before the phase {self.name!r} could be noted.")
        attempt.phases, self.done = phases, True

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
