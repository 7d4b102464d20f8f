"""``@requires_lock``: a view that runs only under a browser lock, in one transaction with the row of the lock."""

from __future__ import annotations

import functools
import re
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from asgiref.sync import markcoroutinefunction, sync_to_async
from django.core.exceptions import BadRequest
from django.db import Error, connections, transaction
from django.utils.translation import gettext as _

from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import finished, uninterrupted
from django_distlock.concurrency.origin import request_of_rest
from django_distlock.http.answers import page, problem
from django_distlock.http.visitors import visitor_of
from django_distlock.leases import rows
from django_distlock.leases.records import check_name, digest_of, named
from django_distlock.locks import decorators
from django_distlock.locks.lazy_results import refuse_unfinished
from django_distlock.locks.name_templates import NoValue, Template
from django_distlock.storage.dialect import contended
from django_distlock.storage.transactions import begin, in_transaction

from .conf import config

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from django.http import HttpRequest, HttpResponse

    from django_distlock.leases.records import Row

F = TypeVar("F", bound="Callable[..., Any]")
HEADER = "Distlock-Lease"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# A lease and its fence in the header; what is malformed is left out.
SENT = re.compile(r"(?<![\w-])([\w-]{8,64})\s*;\s*([0-9]{1,16})\s*(?:,|$)", re.ASCII)
# Leases that one request may send: each costs a statement if it is not the right one.
MOST_SENT = 10
# Seconds for which a request waits for others under the same lease, and between its questions: ever more of them.
PATIENCE, SHORTEST, LONGEST = 5.0, 0.02, 0.25
Reason = Literal["missing", "lost", "busy"]
LOCKED = 423
# Seconds after which a client tries again if other requests have kept the rows busy.
RETRY_AFTER = 1


def requires_lock(*names: str, methods: Collection[str] | None = None) -> Callable[[F], F]:
    """Refuse a request with 423 unless it holds the browser locks ``names``.

    A name may have fields: ``@requires_lock("cart:{request.user.pk}")``. The request sends its lease in the header
    ``Distlock-Lease: <id>;<fence>``, as ``lock.headers`` has it; several are separated by commas. The view runs in a
    transaction of the database that has the locks, and the row of each lock is locked in it: until the commit no other
    lease of the name is granted, even if this one runs out. ``request.distlock_leases`` has the leases, by name. Other
    requests of the same lease wait for at most five seconds, and are then refused as busy.

    Requests with a safe method, such as the GET that renders the page, pass without a lock; ``methods`` names all that
    need one instead. Works on functions, ``async def``, and by ``method_decorator`` on ``dispatch`` or a handler of a
    class.

    :raises TypeError: if ``names`` or ``methods`` is empty or of another type, or for what cannot be decorated.
    :raises ValueError: for a name with a field that the view does not have.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError('requires_lock takes the names of locks: @requires_lock("cart:{request.user.pk}").')
    if methods is not None and (isinstance(methods, str) or not methods):  # each request would pass without a lock
        raise TypeError('methods are the methods that need the lock: methods={"GET", "POST"}.')
    chosen = None if methods is None else frozenset(method.upper() for method in methods)
    return functools.partial(_decorate, names, chosen)


def _decorate(names: tuple[str, ...], methods: frozenset[str] | None, view: Any) -> Any:
    decorators.refuse(view, "requires_lock")
    template = Template(names, view)
    is_async = decorators.is_async(view)

    @functools.wraps(view)
    def locked(*args: Any, **kwargs: Any) -> Any:
        request: Any = request_of(args)
        request.distlock_leases = getattr(request, "distlock_leases", {})
        # the transactions of ATOMIC_REQUESTS begin after the rows are locked
        excluded = getattr(locked, "_non_atomic_requests", ())
        call = functools.partial(decorators.call_view, view, request, excluded, *args, **kwargs)
        if not _needs_lock(request, methods):
            return call()
        run = _arun if is_async or _is_awaited(view, args) else _run
        return run(request, view, functools.partial(_names, names, template, args, kwargs), call)

    if is_async:
        markcoroutinefunction(locked)
    else:
        decorators.open_no_transaction(locked, view)
    decorators.note_template(locked, template)
    return locked


def request_of(args: tuple[Any, ...]) -> HttpRequest:
    """The request that a view, a method or a view of Django REST framework was called with."""
    found: HttpRequest | None = decorators.request_of(args) or request_of_rest(args)
    if found is None:
        raise TypeError("@requires_lock decorates views: no request was found in the arguments.")
    return found


def _is_awaited(view: Any, args: tuple[Any, ...]) -> bool:
    """Is the result of this plain function awaited, as that of ``dispatch`` of an async class is?"""
    return getattr(view, "__name__", "") == "dispatch" and decorators.is_async_dispatch(view, args)


def _needs_lock(request: HttpRequest, methods: frozenset[str] | None) -> bool:
    if methods is None:
        return request.method not in SAFE_METHODS
    return request.method in methods or (request.method == "HEAD" and "GET" in methods)  # the same code answers both


def _names(names: tuple[str, ...], template: Template, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The names of this call. BadRequest if a part of the address makes one that is too long or has a NUL."""
    filled = template.fill(args, kwargs)
    try:
        found = {check_name(filled.get(name, name)) for name in names}
    except ValueError as error:
        raise BadRequest(str(error)) from error
    return sorted(found, key=digest_of)  # every request locks in one order


def _run(request: Any, view: Any, names: Callable[[], list[str]], call: Callable[[], Any]) -> Any:
    """Call the view in a transaction that has locked the rows of its leases, or return the refusal.

    TypeError for a streaming response: its content would be made after the transaction.
    """
    with ExitStack() as stack:
        refusal = _enter(stack, request, names)
        if refusal is not None:
            return refused(request, refusal)
        return _leave(stack, refuse_unfinished(view, call()))


async def _arun(request: Any, view: Any, names: Callable[[], list[str]], call: Callable[[], Any]) -> Any:
    """As :func:`_run` for an async view: its statements run in the thread that has the transaction.

    A task that is cancelled rolls back.
    """
    stack = ExitStack()
    try:
        refusal = await finished(sync_to_async(_enter)(stack, request, names))
        if refusal is not None:
            return await sync_to_async(refused)(request, refusal)
        response = refuse_unfinished(view, await call())
    except BaseException:
        await uninterrupted(sync_to_async(stack.__exit__)(*sys.exc_info()))
        raise
    return await finished(sync_to_async(_leave)(stack, response))


def _leave(stack: ExitStack, response: Any) -> Any:
    """End the transaction, and return the response."""
    if getattr(response, "exception", False) is True:  # that of REST framework: it raises no more
        transaction.set_rollback(True, using=config().database)
    stack.close()
    return response


def _enter(stack: ExitStack, request: Any, names: Callable[[], list[str]]) -> Reason | None:
    """Begin the transaction and lock the rows; else return why not, with no transaction."""
    settings = config()
    sent = [(lease, int(fence)) for lease, fence in SENT.findall(request.headers.get(HEADER, ""))[:MOST_SENT]]
    if not sent:
        return "missing"
    try:
        wanted = names()
    except NoValue:  # no visitor holds such a lock: this one has logged out since, for example
        return "lost"
    principal = visitor_of(request, settings.label_of).holder
    nested, end, pause = in_transaction(settings.database), clock.now() + PATIENCE, SHORTEST
    is_sqlite = connections[settings.database].vendor == "sqlite"
    while True:
        try:
            with ExitStack() as attempt:
                begin(attempt, settings.database)
                leases = {name: _lock(settings.database, name, sent, principal) for name in wanted}
                if None in leases.values():
                    return "lost"
                request.distlock_leases = {**request.distlock_leases, **leases}  # those of another decorator, too
                stack.enter_context(attempt.pop_all())
                return None
        except Error as error:
            why = contended(error)
            if why is None:
                raise
            # that transaction has ended, or on SQLite what it has read is too old for a write
            if clock.now() >= end or (nested and (why == "refused" or is_sqlite)):
                return "busy"
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)


def _lock(alias: str, name: str, sent: list[tuple[str, int]], principal: str) -> Row | None:
    for lease, fence in sent:
        if (found := rows.lock_current(named(alias, name), lease, fence, principal)) is not None:
            return found
    return None


def refused(request: HttpRequest, reason: Reason) -> HttpResponse:
    """A small page for a browser, problem+json for a script. Neither says who has the lock."""
    title, detail = _("Nothing was done"), _texts()[reason]
    if _wants_a_page(request):
        response = page(request, "django_distlock/browser/locked.html", LOCKED, title=title, detail=detail)
    else:
        response = problem(LOCKED, title, detail, reason=reason)
    response["Vary"] = "Accept"
    if reason == "busy":
        response["Retry-After"] = str(RETRY_AFTER)
    response._has_been_logged = True  # type: ignore[attr-defined]  # no incident: Django would warn of it
    return response


def _texts() -> dict[Reason, str]:
    return {
        "missing": _("This needs a lock that your page does not hold. Nothing was changed; load the page again."),
        "lost": _("Your page has lost its lock, for example to another tab. Nothing was changed; load the page again."),
        "busy": _("Other requests are using this right now. Nothing was changed; please try again in a moment."),
    }


def _wants_a_page(request: HttpRequest) -> bool:
    """Has a browser sent this by itself, a form for example? Scripts send the header, or accept anything."""
    if HEADER in request.headers:
        return False
    types = ["application/json", "application/problem+json", "text/html"]
    return request.get_preferred_type(types) == "text/html"
