"""One request with a key: from the claim to the view, and from the view's answer to the stored one.

Threads :func:`~django_distlock.concurrency.flow.run` these functions, tasks await them.
"""

from __future__ import annotations

import logging
import operator
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.contrib.messages import get_messages
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.crypto import salted_hmac
from django.utils.safestring import SafeData
from django.utils.translation import get_language

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import pause
from django_distlock.concurrency.flow import in_task
from django_distlock.manager.site_key import site_key
from django_distlock.schema import Tenant

from . import decisions, signals
from .conf import config, login_url
from .decisions import BadKey, Decision, Ending
from .handle import Answering, Idempotency, KeyedRequest
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
    from collections.abc import Callable

    from django.contrib.messages.storage.base import Message
    from django.dispatch import Signal

    from .http.requests import Source
    from .options import Options
    from .storage import Storage

logger = logging.getLogger("django_distlock.idempotency")
T = TypeVar("T")
# What a view's decorators write on its response for the middleware that sets X-Frame-Options and
# Content-Security-Policy (Django 6).
MARKS = ("xframe_options_exempt", "_csp_config", "_csp_ro_config")
_in_thread = sync_to_async(operator.call)


async def blocking(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function that may block: in this thread, or for a task in Django's thread for the ORM."""
    if in_task():
        result: T = await _in_thread(partial(function, *args, **kwargs))
        return result
    return function(*args, **kwargs)


def state_of(request: HttpRequest) -> Idempotency:
    """``request.idempotency``; a new one if the middleware is not in use."""
    state: Idempotency | None = getattr(request, "idempotency", None)
    if state is None:
        state = request.idempotency = Idempotency()  # type: ignore[attr-defined]
    return state


async def load_site_key() -> str:
    """The key of what is stored, which does not change with the name of the database."""
    key = site_key.portable
    if key is None:
        loaded: str = await site_key.aload()
        key = site_key.portable or loaded
    return key


async def enter(request: HttpRequest, options: Options, view: Any = None) -> KeyedRequest | HttpResponse | None:
    """The attempt that a request is; an answer if its key is refused; None if it has no key and needs none."""
    source: Source | None = None
    try:
        if (found := find_key(request, options, view)) is not None:
            source, key = found
            try:
                principal = await blocking(principal_of, request)
            except Error:  # the session, or the user, is in a database that is down
                return await blocking(_without_store, request, options, source)
        if source is None or (source == "header" and not (principal.known or options.anonymous)):
            if options.required:
                raise decisions.MissingKey
            return None
        if source == "form":
            verified = forms.verify(request, key, principal.text)
            if verified is not forms.Verified.GOOD:
                logger.info("A form key was refused at %s: %s.", ascii(request.path), verified.value)
                return await blocking(responses.not_issued, request, verified)
            key = key.partition(".")[0]
        try:
            secret = await load_site_key()
        except BackendUnavailable:
            return await blocking(_without_store, request, options, source)
        return await blocking(_attempt, request, options, source, key, principal, secret)
    except BadKey as error:
        return await blocking(responses.bad_key, request, error, html=wants_page(request, source))


def _tenant(storage: Storage) -> Tenant | None:
    """The tenant that the request works for; None on a site without tenants.

    A cache may have the schema of the default database in its keys.
    """
    alias = storage.alias if isinstance(storage, DatabaseStorage) else DEFAULT_DB_ALIAS
    return Tenant(alias) if hasattr(connections[alias], "tenant") else None


def _attempt(
    request: HttpRequest, options: Options, source: Source, key: str, principal: Principal, secret: str
) -> KeyedRequest:
    settings, alias, html = config(), alias_of(options), wants_page(request, source)
    method, route, tenant = request.method or "", route_of(request), tenant_of(request, options)
    mark = mark_of(request, secret, principal)
    # webhooks share one sender, and unknown clients one name: a quota would let them use up each other's keys
    has_quota = source != "callable" and principal.kind != "anonymous"
    claim = KeyClaim(
        scope=decisions.scope_of(secret, tenant, principal.text, method, route, key),
        owner=secrets.token_hex(16),
        fingerprint=fingerprint_of(request, secret, options),
        claim_ttl=settings.claim_ttl if options.claim_ttl is None else options.claim_ttl,
        ttl=settings.ttl if options.ttl is None else options.ttl,
        principal=_label_of(principal, mark),
        method=method,
        route=route,
        quota=settings.max_keys if has_quota else None,
    )
    wait = settings.form_wait if html else settings.wait
    replays = options.replay_to_credentials
    storage = storage_of(alias)
    return KeyedRequest(
        request=request,
        source=source,
        key=key,
        principal=principal,
        claim=claim,
        mark=mark,
        html=html,
        site_key=secret,
        storage=storage,
        tenant=_tenant(storage),
        alias=alias,
        wait=wait if options.wait is None else options.wait,
        max_body=settings.max_body,
        on_crash=options.on_crash or settings.on_crash,  # type: ignore[arg-type]
        on_store_error=options.on_store_error or settings.on_store_error,
        replays=options.anonymous or (settings.replay_to_credentials if replays is None else replays),
    )


def alias_of(options: Options) -> str | None:
    """The database of the exactly-once mode; None without it."""
    return config().database if options.atomic is True else options.atomic or None


def _label_of(principal: Principal, mark: str) -> str:
    """The principal as the list of keys shows it, and as keys are counted by: only a user has a name that is no secret.

    The hash of a credential needs SECRET_KEY: the site key is in the same database, and with a dump of it passwords
    could be tried.
    """
    if principal.kind in ("user", "anonymous"):
        return principal.label
    digits = salted_hmac("django_distlock.idempotency.whose", mark, algorithm="sha256").hexdigest()
    return f"{principal.label} {digits[:12]}"


def mark_of(request: HttpRequest, secret: str, principal: Principal) -> str:
    """Who may see the outcome on the waiting page: this principal, at this host."""
    return decisions.keyed(secret, "mark", request.get_host().lower(), principal.text)


def _without_store(request: HttpRequest, options: Options, source: Source) -> HttpResponse | None:
    """The answer if it cannot be seen whether the request was carried out; None for ``on_store_error="open"``."""
    logger.exception("The store of idempotency keys does not answer.")
    if (options.on_store_error or config().on_store_error) == "open":
        return None
    return responses.store_down(request, html=wants_page(request, source))


async def claim(attempt: KeyedRequest) -> Answering | None:
    """Claim the key. None: it is ours, run the view. Else the function that makes the answer.

    In the exactly-once mode, called inside the transaction.
    """
    deadline, tries, late = clock.now() + attempt.wait, 0, attempt.wait <= 0
    storage, scope = attempt.storage, attempt.claim.scope
    try:
        record = await blocking(_ask, attempt, last=late)
        while record is not None:
            answer = await _settle(attempt, record, late=late)
            if answer is not None or attempt.running:
                return answer
            if late:
                return partial(_in_flight, attempt)
            await pause(decisions.pause(tries))
            tries, late = tries + 1, clock.now() >= deadline
            # in a transaction a read alone may have to wait for the end of another one
            record = None if attempt.alias is not None else (await blocking(storage.read, scope))
            if record is None:
                record = await blocking(_ask, attempt, last=late)
    except TooManyKeys as error:
        whose, quota = attempt.claim.principal, attempt.claim.quota
        logger.warning("%s has %d idempotency keys that live: no more are taken.", whose, quota)
        return partial(responses.too_many_keys, attempt, error.seconds)
    except LockNotAcquired as error:
        if error.__cause__ is None:
            return partial(_in_flight, attempt)
        attempt.broken = True  # the database was busy: nothing is known of this key, not even for "open"
        return partial(responses.store_down, attempt.request, html=attempt.html)
    except BackendUnavailable:
        attempt.broken = True
        logger.exception("The store of idempotency keys does not answer.")
        if attempt.on_store_error == "open":
            return None
        return partial(responses.store_down, attempt.request, html=attempt.html)
    _run(attempt)
    return None


def _ask(attempt: KeyedRequest, *, last: bool) -> Record | None:
    if attempt.alias is None:
        return attempt.storage.claim(attempt.claim)
    return attempt.storage.claim_inside(attempt.claim, last=last)  # type: ignore[attr-defined, no-any-return]


def _in_flight(attempt: KeyedRequest) -> HttpResponse:
    _send(signals.key_conflict, attempt)
    return responses.in_flight(attempt)


def _run(attempt: KeyedRequest) -> None:
    attempt.running = True
    if attempt.alias is None:
        renewal.add(attempt)
    _send(signals.key_claimed, attempt)


async def _settle(attempt: KeyedRequest, record: Record, *, late: bool) -> Answering | None:
    """The answer for a key that has a record. None: it is ours now (``attempt.running``), or wait and look again."""
    verdict = decisions.judge(record, attempt.claim.fingerprint)
    if verdict in (Decision.REPLAY, Decision.TOMBSTONE):
        return partial(_again, attempt, record)
    if verdict is Decision.MISMATCH and (record.state != CLAIMED or not attempt.html or late):
        return partial(_other_data, attempt, record)
    if verdict is Decision.HELD:
        return partial(responses.held, attempt)
    if verdict is Decision.CRASHED:
        return await _crashed(attempt, record)
    if verdict is Decision.TAKE_OVER:
        await _take_over(attempt, record)
    return None


def _again(attempt: KeyedRequest, record: Record) -> HttpResponse:
    """The stored answer, or a notice that there was one."""
    answer = record.answer if _may_see(attempt) else None
    if answer is not None and answer.body is not None:
        found = responses.replay(attempt.request, answer)
        if found is not None:
            _send(signals.key_replayed, attempt)
            return found
    _send(signals.key_tombstone, attempt)
    return responses.tombstone(attempt, answer, withheld=record.answer is not None and answer is None)


def _other_data(attempt: KeyedRequest, record: Record) -> HttpResponse:
    _send(signals.key_mismatch, attempt)
    answer = record.answer if _may_see(attempt) else None
    return responses.mismatch(attempt, answer, running=record.state == CLAIMED)


def _may_see(attempt: KeyedRequest) -> bool:
    """May this client see a stored answer? A credential that only the view checks may not: it may be revoked by now."""
    if attempt.principal.kind != "credential" or attempt.replays or _is_trusted(attempt):
        return True
    logger.info(
        "The stored answer of %s was not given to a credential that nothing has checked before the view: see "
        "replay_to_credentials.",
        ascii(attempt.claim.route),
    )
    return False


async def _crashed(attempt: KeyedRequest, record: Record) -> Answering | None:
    _send(signals.key_expired, attempt)
    policy: Any = attempt.on_crash
    if callable(policy):
        policy = await blocking(policy, attempt.request, record)
    if policy not in ("retry", "hold") and not isinstance(policy, HttpResponse):
        raise TypeError(f'on_crash must return "retry", "hold" or an HttpResponse, not {type(policy).__name__}.')
    if policy == "hold":
        await blocking(attempt.storage.hold, record, attempt.claim.ttl)
        return partial(responses.held, attempt)
    await _take_over(attempt, record)
    if isinstance(policy, HttpResponse) and attempt.running:
        await finish(attempt, policy)
        return lambda: policy
    return None


async def _take_over(attempt: KeyedRequest, record: Record) -> None:
    if await blocking(attempt.storage.take_over, record, attempt.claim):
        # the results of other data, or of a request that was answered, do not count for this one
        if record.state != COMPLETED and record.fingerprint == attempt.claim.fingerprint:
            attempt.phases = dict(record.phases)
        _run(attempt)


def ending_of(attempt: KeyedRequest, response: HttpResponseBase) -> Ending:
    """What happens to the key after this answer."""
    if attempt.kept and response.status_code < 500:
        return Ending.KEEP
    moves_on = any(response.has_header(name) for name in ("HX-Redirect", "HX-Location"))
    status, trusted = response.status_code, _is_trusted(attempt)
    to_login = not trusted and 300 <= status < 400 and response.get("Location", "").partition("?")[0] == login_url()
    form = attempt.source == "form"
    return decisions.ending_of(status, form=form, moves_on=moves_on, trusted=trusted, to_login=to_login)


def _is_trusted(attempt: KeyedRequest) -> bool:
    """Was the principal authenticated, before the view or by it? A view may have found the user of a token."""
    if attempt.principal.kind == "user" or attempt.vouched or is_authenticated(getattr(attempt.request, "user", None)):
        return True
    return bool(getattr(attempt.request, "auth", None))  # django-ninja: what its authentication has found


async def finish(attempt: KeyedRequest, response: HttpResponseBase) -> None:
    """Store the answer, or free the key. An error of the storage is only logged: the view has acted."""
    if not attempt.running:
        return
    end(attempt)
    if not attempt.reached:
        await _release(attempt)  # a decorator above has answered: the view has done nothing
        return
    route = ascii(attempt.claim.route)
    if attempt.doubtful and response.status_code >= 500:
        logger.warning("Another middleware failed after %s: its claim runs out, as if the process had died.", route)
        return
    try:
        if not await blocking(store, attempt, response):
            logger.warning("The answer of %s was not kept: its claim was taken over or released.", route)
    except (BackendUnavailable, LockNotAcquired):
        logger.exception("The answer of %s could not be kept.", route)


def store(attempt: KeyedRequest, response: HttpResponseBase) -> bool:
    """Store an answer that is final, else free the key. False: another request has the claim by now."""
    storage, claim = attempt.storage, attempt.claim
    if ending_of(attempt, response) is not Ending.KEEP:
        storage.release(claim, failed=attempt.alias is None and bool(attempt.phases))
        return True
    stored = storage.complete(claim, _answer_of(attempt, response))
    if stored:
        _keep_body_when_rendered(attempt, response)
    return stored


async def free(attempt: KeyedRequest) -> None:
    """Free the key after an exception of the view. An error of the storage is only logged: the view's is raised."""
    if not attempt.running:
        return
    end(attempt)
    await _release(attempt)


async def _release(attempt: KeyedRequest) -> None:
    try:
        await blocking(attempt.storage.release, attempt.claim, failed=bool(attempt.phases))
    except (BackendUnavailable, LockNotAcquired):
        logger.exception("The key of %s could not be freed.", ascii(attempt.claim.route))


def end(attempt: KeyedRequest) -> None:
    """End the renewal of the claim: the view has ended, well or not."""
    attempt.running = False
    renewal.remove(attempt)
    sweeper.sweep_if_due(attempt.storage, attempt.tenant)


def _answer_of(attempt: KeyedRequest, response: HttpResponseBase) -> StoredResponse:
    """The stored part of a response: without its body if that is not rendered yet, is streamed, or is too large."""
    request = attempt.request
    whole = not response.streaming and getattr(response, "is_rendered", True)
    body = response.content if whole and isinstance(response, HttpResponse) else None
    headers = list(response.items())
    if hasattr(request, "LANGUAGE_CODE") and not response.has_header("Content-Language") and (said := get_language()):
        # LocaleMiddleware would write it later, by the language of the client that repeats the request
        headers.append(("Content-Language", said))
    marks = {name: value for name in MARKS if (value := getattr(response, name, None)) is not None}
    messages = _messages_of(request)
    return decisions.answer_of(response.status_code, headers, body, messages, attempt.max_body, marks)


def _messages_of(request: HttpRequest) -> list[tuple[int, str, str, bool]]:
    """The messages that this request has added and that no page has shown yet."""
    storage: Any = get_messages(request)
    queued: list[Message] = [] if getattr(storage, "used", False) else getattr(storage, "_queued_messages", [])
    return [(m.level, str(m.message), str(m.extra_tags or ""), isinstance(m.message, SafeData)) for m in queued]


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
