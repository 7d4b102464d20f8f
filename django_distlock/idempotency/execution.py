"""One request with a key: from the claim to the view, and from the view's answer to the stored one.

Plain functions block: tasks call them by :func:`in_thread`.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from asgiref.sync import sync_to_async
from django.contrib.messages import get_messages
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.crypto import salted_hmac
from django.utils.safestring import SafeData
from django.utils.translation import get_language

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import in_task
from django_distlock.concurrency.parking import Parker
from django_distlock.manager.site_key import site_key
from django_distlock.schema import Tenant
from django_distlock.storage.dialect import contended
from django_distlock.storage.transactions import in_transaction

from . import decisions, signals
from .conf import config, login_url
from .decisions import BadKey, Decision
from .handle import Idempotency, KeyedRequest, MakeResponse
from .http import forms, responses
from .http.requests import (
    Principal,
    find_key,
    fingerprint_of,
    is_authenticated,
    principal_of,
    route_of,
    tenant_of,
    wants_page,
)
from .records import CLAIMED, COMPLETED, KeyClaim, Record, StoredResponse
from .storage import TooManyKeys, storage_of
from .storage.database import DatabaseStorage
from .upkeep import renewal, sweeper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django.contrib.messages.storage.base import Message
    from django.dispatch import Signal

    from .conf import Options
    from .http.requests import Source

logger = logging.getLogger("django_distlock.idempotency")
T = TypeVar("T")
R = TypeVar("R")
# Django 6: what a view allows its page, for the middleware above. A replay without it could run what it must not.
POLICIES = ("_csp_config", "_csp_ro_config")
WAIT: Literal["wait"] = "wait"  # another request has the key


def state_of(request: HttpRequest) -> Idempotency:
    """``request.idempotency``; a new one if the middleware is not in use."""
    state: Idempotency | None = getattr(request, "idempotency", None)
    if state is None:
        state = request.idempotency = Idempotency()  # type: ignore[attr-defined]
    return state


def begin(request: HttpRequest, given: Mapping[str, Any]) -> KeyedRequest | HttpResponse | None:
    """The attempt that a request is; an answer if its key is refused; None if it has no key and needs none."""
    options = replace(config(), **given) if given else config()
    source: Source | None = None
    try:
        if (found := find_key(request, options)) is not None:
            source, key = found
            principal = _asked(principal_of, request)
        if source is None or (
            source == "header" and principal.kind not in ("user", "credential") and not options.anonymous
        ):
            if options.required:
                raise decisions.MissingKey
            return None
        if source == "form":
            if not forms.is_valid(request, key, principal.text):
                logger.info("A form key was refused at %s.", ascii(request.path))
                return responses.given(responses.NOT_ISSUED, request, True)
            key = forms.number_of(key)
        return _attempt(request, options, source, key, principal)
    except BadKey as error:
        return responses.bad_key(request, error, html=wants_page(request, source))
    except BackendUnavailable:
        logger.exception("The store of idempotency keys does not answer.")
        html = wants_page(request, source)
        return None if options.on_store_error == "open" else responses.store_down(request, html=html)


def _asked(question: Callable[[T], R], about: T) -> R:
    """The answer to a question that may need a database: that of the sessions, of the users, or of the keys."""
    try:
        return question(about)
    except Error as error:
        raise BackendUnavailable("A database does not answer.") from error


def _attempt(request: HttpRequest, options: Options, source: Source, key: str, principal: Principal) -> KeyedRequest:
    # the key of what is stored, which does not change with the name of the database
    secret = site_key.portable or (site_key.load() and site_key.portable) or ""
    method, route, tenant = request.method or "", route_of(request), tenant_of(request, options)
    # webhooks share one sender, and unknown clients one name: a quota would let them use up each other's keys
    has_quota = source != "callable" and principal.kind != "anonymous"
    claim = KeyClaim(
        scope=decisions.scope_of(secret, tenant, principal.text, method, route, key),
        owner=secrets.token_hex(16),
        fingerprint=fingerprint_of(request, secret, options),
        claim_ttl=options.claim_ttl,
        ttl=options.ttl,
        principal=_label_of(request, principal, secret),
        method=method,
        route=route,
        quota=options.max_keys if has_quota else None,
    )
    alias = _alias_of(options)
    storage = storage_of(alias)
    return KeyedRequest(
        request=request,
        options=options,
        source=source,
        key=key,
        principal=principal,
        claim=claim,
        html=wants_page(request, source),
        site_key=secret,
        storage=storage,
        alias=alias,
        # a cache may have the schema of the default database in its keys
        tenant=Tenant(storage.alias if isinstance(storage, DatabaseStorage) else DEFAULT_DB_ALIAS),
    )


def _alias_of(options: Options) -> str | None:
    """The database of the exactly-once mode; None without it.

    In a transaction of the keys' database there is no other mode: nobody else would see a claim.
    """
    if options.atomic:
        return options.database if options.atomic is True else str(options.atomic)
    if options.storage == "database" and _asked(in_transaction, options.database):
        return options.database
    return None


def refuse_transaction(attempt: KeyedRequest) -> None:
    """ImproperlyConfigured for a claim in a transaction where view and answer cannot be part of it."""
    if attempt.alias is not None:
        raise ImproperlyConfigured(
            "Other requests do not see a claim that is made in a transaction. Use @idempotent(atomic=True) on a sync "
            "view, or let the transaction begin below the IdempotencyMiddleware."
        )


def _label_of(request: HttpRequest, principal: Principal, secret: str) -> str:
    """The principal as the list of keys shows it, and as keys are counted by: only a user has a name that is no secret.

    The hash of a credential needs SECRET_KEY: the site key is in the same database, and with a dump of it passwords
    could be tried.
    """
    if principal.kind in ("user", "anonymous"):
        return principal.label
    mark = decisions.keyed(secret, "mark", request.get_host().lower(), principal.text)
    digits = salted_hmac("django_distlock.idempotency.whose", mark, algorithm="sha256").hexdigest()
    return f"{principal.label} {digits[:12]}"


async def in_thread(function: Callable[..., R], *args: Any) -> R:
    """Call a function that blocks: in a thread for a task, else here."""
    return await sync_to_async(function)(*args) if in_task() else function(*args)


async def claim(attempt: KeyedRequest) -> MakeResponse | None:
    """Claim the key. None: it is ours, run the view. Else the function that makes the answer.

    In the exactly-once mode, called inside the transaction.
    """
    until = clock.now() + (attempt.options.form_wait if attempt.html else attempt.options.wait)
    while (found := await in_thread(ask, attempt, clock.now() >= until)) == WAIT:
        await Parker().park(decisions.pause(attempt.tries))
    return found


def ask(attempt: KeyedRequest, last: bool) -> MakeResponse | Literal["wait"] | None:
    """One try to claim the key. "wait": another request has it, and it is not the ``last`` try."""
    try:
        record = _record_of(attempt, last=last)
        found = None if record is None else _settle(attempt, record, last=last)
    except TooManyKeys as error:
        whose, quota = attempt.claim.principal, attempt.claim.quota
        logger.warning("%s has %d idempotency keys that live: no more are taken.", whose, quota)
        answer = responses.TOO_MANY._replace(retry_after=max(error.seconds, 1))
        return partial(responses.given, answer, attempt.request, attempt.html)
    except LockNotAcquired as error:
        cause = error.__cause__
        attempt.broken = cause is not None
        if cause is None or contended(cause) == "refused":  # another request with this key was first
            return partial(_in_flight, attempt)
        # the database was busy: nothing is known of this key, and the view does not run, not even for "open"
        return partial(responses.store_down, attempt.request, html=attempt.html)
    except BackendUnavailable:
        attempt.broken = True
        logger.exception("The store of idempotency keys does not answer.")
        if attempt.options.on_store_error == "open":
            return None
        return partial(responses.store_down, attempt.request, html=attempt.html)
    attempt.tries += 1
    if found is None:
        _run(attempt)
    return found


def _record_of(attempt: KeyedRequest, *, last: bool) -> Record | None:
    """The record of the key; None: it is claimed now."""
    record = None
    if attempt.tries and attempt.alias is None:  # in a transaction a read may have to wait for the end of another one
        record = attempt.storage.read(attempt.claim.scope)
    return attempt.storage.claim(attempt.claim, last=last) if record is None else record


def _in_flight(attempt: KeyedRequest) -> HttpResponse:
    _send(signals.key_conflict, attempt)
    return responses.in_flight(attempt)


def _run(attempt: KeyedRequest) -> None:
    attempt.running = True
    if attempt.alias is None:
        renewal.add(attempt)
    _send(signals.key_claimed, attempt)


def _settle(attempt: KeyedRequest, record: Record, *, last: bool) -> MakeResponse | Literal["wait"] | None:
    """The answer for a key that has a record. None: it is ours now."""
    verdict = decisions.judge(record, attempt.claim.fingerprint)
    if verdict is Decision.ANSWERED:
        return partial(_again, attempt, record)
    # changed data of a form: the first request may still turn out to have failed
    if verdict is Decision.MISMATCH and (record.state != CLAIMED or not attempt.html or last):
        return partial(_other_data, attempt, record)
    if verdict is Decision.HELD:
        return partial(responses.given, responses.UNKNOWN, attempt.request, attempt.html)
    if verdict is Decision.CRASHED:
        return _after_crash(attempt, record, last=last)
    if verdict is Decision.TAKE_OVER and _take_over(attempt, record):
        return None
    return partial(_in_flight, attempt) if last else WAIT


def _after_crash(attempt: KeyedRequest, record: Record, *, last: bool) -> MakeResponse | Literal["wait"] | None:
    """What ``on_crash`` says."""
    _send(signals.key_expired, attempt)
    policy: Any = attempt.options.on_crash
    if callable(policy):
        policy = policy(attempt.request, record)
    if policy not in ("retry", "hold") and not isinstance(policy, HttpResponse):
        raise TypeError(f'on_crash must return "retry", "hold" or an HttpResponse, not {type(policy).__name__}.')
    if policy == "hold":
        attempt.storage.hold(record, attempt.claim.ttl)
        return partial(responses.given, responses.UNKNOWN, attempt.request, attempt.html)
    if not _take_over(attempt, record):
        return partial(_in_flight, attempt) if last else WAIT
    if policy == "retry":
        return None
    _run(attempt)
    finish(attempt, policy)
    return lambda: policy


def _take_over(attempt: KeyedRequest, record: Record) -> bool:
    if not attempt.storage.take_over(record, attempt.claim):
        return False
    # the results of other data, or of a request that was answered, do not count for this one
    if record.state != COMPLETED and record.fingerprint == attempt.claim.fingerprint:
        attempt.phases = dict(record.phases)
    return True


def _again(attempt: KeyedRequest, record: Record) -> HttpResponse:
    """The stored answer, or a notice that there was one."""
    answer = record.answer if _may_see(attempt) else None
    if answer is not None and answer.body is not None:
        _send(signals.key_replayed, attempt)
        return responses.replay(attempt.request, answer)
    _send(signals.key_tombstone, attempt)
    if answer is not None and answer.location:
        return responses.replay(attempt.request, replace(answer, status=303, body=b""))
    told = responses.COMPLETED if answer is record.answer else responses.WITHHELD
    return responses.given(told, attempt.request, attempt.html)


def _other_data(attempt: KeyedRequest, record: Record) -> HttpResponse:
    _send(signals.key_mismatch, attempt)
    told = responses.MISMATCH_RUNNING if record.state == CLAIMED else responses.MISMATCH
    location = record.answer.location if record.answer is not None and _may_see(attempt) else None
    return responses.given(told, attempt.request, attempt.html, location=location)


def _may_see(attempt: KeyedRequest) -> bool:
    """May this client see a stored answer? A credential that only the view checks may not: it may be revoked by now."""
    options = attempt.options
    if attempt.principal.kind != "credential" or options.anonymous or options.replay_to_credentials:
        return True
    if _is_trusted(attempt):
        return True
    logger.info(
        "The stored answer of %s was not given to a credential that nothing has checked before the view: see "
        "replay_to_credentials.",
        ascii(attempt.claim.route),
    )
    return False


def _is_trusted(attempt: KeyedRequest) -> bool:
    """Was the principal authenticated, before the view or by it? A view may have found the user of a token."""
    if attempt.principal.kind == "user" or is_authenticated(getattr(attempt.request, "user", None)):
        return True
    # what the authentication of the REST framework or of django-ninja has found
    return bool(getattr(attempt.request, "auth", None))


def _is_final(attempt: KeyedRequest, response: HttpResponseBase) -> bool:
    """Is this answer stored? Otherwise the key is freed."""
    if response.status_code >= 500 or attempt.kept:
        return response.status_code < 500
    status, is_redirect = response.status_code, 300 <= response.status_code < 400
    if attempt.source == "form":  # a page is the form with its errors, unless it makes htmx load another one
        moves_on = any(response.has_header(name) for name in ("HX-Redirect", "HX-Location"))
        return is_redirect or status in (201, 202, 204) or moves_on
    if _is_trusted(attempt):
        return status not in decisions.PASSING
    # Refusals of others are not stored, nor is the way to the log-in: a forged request would use up the key of the real
    # one, and requests with invented tokens would fill the table.
    to_login = is_redirect and response.get("Location", "").partition("?")[0] == login_url()
    return 200 <= status < 400 and not to_login


def finish(attempt: KeyedRequest, response: HttpResponseBase | None = None) -> None:
    """Store the answer, or free the key; None: the view has raised. An error of the storage is only logged: the view
    has acted."""
    if not attempt.running:
        return
    end(attempt)
    route = ascii(attempt.claim.route)
    if response is not None and attempt.outcome_unknown and response.status_code >= 500:
        logger.warning("Another middleware failed after %s: its claim runs out, as if the process had died.", route)
        return
    try:
        if not store(attempt, response):
            logger.warning("The answer of %s was not kept: its claim was taken over or released.", route)
    except (BackendUnavailable, LockNotAcquired):
        logger.exception("The answer of %s could not be kept.", route)


def store(attempt: KeyedRequest, response: HttpResponseBase | None) -> bool:
    """Store an answer that is final, else free the key. False: another request has the claim by now."""
    storage, claim = attempt.storage, attempt.claim
    if response is None or not _is_final(attempt, response):
        storage.release(claim, failed=attempt.alias is None and bool(attempt.phases))
        return True
    stored = storage.complete(claim, _answer_of(attempt, response))
    if stored:
        _keep_body_when_rendered(attempt, response)
    return stored


def end(attempt: KeyedRequest) -> None:
    """End the renewal of the claim: the view has ended, well or not."""
    attempt.running = False
    renewal.remove(attempt)
    sweeper.sweep_if_due(attempt.storage, attempt.tenant)


def _answer_of(attempt: KeyedRequest, response: HttpResponseBase) -> StoredResponse:
    """The stored part of a response: without its body if that is not rendered yet, is streamed, or is too large."""
    request, body = attempt.request, None
    if isinstance(response, HttpResponse) and getattr(response, "is_rendered", True):
        body = response.content
    if body is not None and (len(body) > attempt.options.max_body or any(hasattr(response, p) for p in POLICIES)):
        body = None
    headers = decisions.kept_headers(response.items())
    if hasattr(request, "LANGUAGE_CODE") and not response.has_header("Content-Language") and (said := get_language()):
        # LocaleMiddleware would write it later, by the language of the client that repeats the request
        headers = (*headers, ("Content-Language", said))
    return StoredResponse(status=response.status_code, headers=headers, body=body, messages=_messages_of(request))


def _messages_of(request: HttpRequest) -> tuple[tuple[int, str, str, bool], ...]:
    """The messages that this request has added and that no page has shown yet."""
    storage: Any = get_messages(request)
    queued: list[Message] = [] if getattr(storage, "used", False) else getattr(storage, "_queued_messages", [])
    return tuple((m.level, str(m.message), str(m.extra_tags or ""), isinstance(m.message, SafeData)) for m in queued)


def _keep_body_when_rendered(attempt: KeyedRequest, response: Any) -> None:
    """Store the body of a TemplateResponse when it is rendered, which is after the view."""
    if getattr(response, "is_rendered", True):
        return

    def add_body(rendered: Any) -> None:
        try:
            attempt.storage.add_body(attempt.claim, _answer_of(attempt, rendered))
        except (BackendUnavailable, LockNotAcquired):
            logger.exception("The body of the answer of %s could not be kept.", ascii(attempt.claim.route))

    response.add_post_render_callback(add_body)


def _send(signal: Signal, attempt: KeyedRequest) -> None:
    if signal.receivers:
        claim = attempt.claim
        signal.send_robust(sender=Idempotency, request=attempt.request, scope=claim.scope, route=claim.route)
