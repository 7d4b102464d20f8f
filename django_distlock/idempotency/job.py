"""One request with a key, from the claim to the stored answer: steps that a sync and an async driver carry out.

A flow is a generator that yields what blocks, as a callable, or a number of seconds to wait. It decides, and knows
neither threads nor tasks.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.utils.crypto import salted_hmac

from .records import Claim

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .http.requests import Principal, Source
    from .options import OnCrash
    from .storage import Storage

T = TypeVar("T")
Flow = Generator[Callable[[], Any] | float, Any, T]


@dataclass(slots=True, kw_only=True)
class Job:
    """Everything that is known of the attempt; ``owner`` is its token. ``alias``: the database of the exactly-once
    mode, else None."""

    request: HttpRequest
    source: Source
    key: str
    principal: Principal
    scope: str
    mark: str
    fingerprint: str
    route: str
    html: bool
    site_key: str
    storage: Storage
    alias: str | None
    ttl: float
    claim_ttl: float
    wait: float
    max_body: int
    quota: int | None
    on_crash: OnCrash
    on_store_error: str
    replays: bool  # the stored answer is given to a credential that nothing has checked
    reached: bool = True  # False until the decorator is, if the middleware has claimed for it
    owner: str = field(default_factory=lambda: secrets.token_hex(16))
    running: bool = False
    broken: bool = False  # the store failed in the caller's transaction
    kept: bool = False
    vouched: bool = False  # the framework has accepted the credential
    raised: bool = False  # by the view
    doubtful: bool = False  # another middleware has failed, and the view may have acted
    phases: dict[str, Any] = field(default_factory=dict)

    @property
    def claim(self) -> Claim:
        return Claim(
            scope=self.scope,
            owner=self.owner,
            fingerprint=self.fingerprint,
            claim_ttl=self.claim_ttl,
            ttl=self.ttl,
            principal=self.whose,
            method=self.request.method or "",
            route=self.route,
            quota=self.quota,
        )

    @property
    def whose(self) -> str:
        """For people, and to count by: only a user has a name that is not secret. The hash of a credential needs
        SECRET_KEY: the site key is in the same database, and passwords could be tried on a dump of it."""
        if self.principal.kind in ("user", "anybody"):
            return self.principal.label
        digits = salted_hmac("django_distlock.idempotency.whose", self.mark, algorithm="sha256").hexdigest()
        return f"{self.principal.label} {digits[:12]}"


def run(flow: Flow[T]) -> T:
    """Carry out a flow in this thread."""
    value: Any = None
    error: Exception | None = None
    while True:
        try:
            step = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value = error = None
        try:
            if isinstance(step, float):
                time.sleep(step)
            else:
                value = step()
        except Exception as raised:
            error = raised


async def arun(flow: Flow[T]) -> T:
    """Carry out a flow for a task: what blocks runs in Django's thread for the ORM."""
    value: Any = None
    error: Exception | None = None
    while True:
        try:
            step = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value = error = None
        try:
            value = await (asyncio.sleep(step) if isinstance(step, float) else sync_to_async(step)())
        except Exception as raised:
            error = raised
