"""From a request to the right to run it, and from its answer to the stored one."""

# What a flow yields is called by its driver: the values that come back have no type here.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import Error
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.concurrency.clock import monotonic
from django_distlock.manager.site_key import site_key

from . import decisions, signals
from .conf import config, login_url
from .decisions import BadKey, Ending, Verdict
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
from .job import Flow, Job
from .records import CLAIMED, COMPLETED, Record
from .renewal import renewal
from .storage import TooManyKeys, storage_of
from .storage.sweeping import sweeper

if TYPE_CHECKING:
    from django.dispatch import Signal

    from .options import Options

logger = logging.getLogger("django_distlock.idempotency")
Answering = Callable[[], HttpResponse]


def enter(request: HttpRequest, options: Options, view: Any = None) -> Flow[Job | HttpResponse | None]:
    """The attempt that a request is; an answer if its key cannot be taken; None if it has none and needs none."""
    try:
        found = find_key(request, options, view)
    except BadKey as error:
        return (yield partial(responses.bad_key, request, error, html=wants_page(request, None)))
    if found is not None:
        source, key = found
        try:
            principal = yield partial(principal_of, request)
        except Error:  # the session, or the user, is in a database that is down
            return (yield partial(_without_store, request, options, wants_page(request, source)))
        if source == "header" and not (principal.known or options.anonymous):
            found = None
    if found is None:
        if not options.required:
            return None
        return (yield partial(responses.missing_key, request, html=wants_page(request, None)))
    if source == "form":
        verified = forms.verify(request, key, principal.text)
        if verified is not forms.Verified.GOOD:
            logger.info("A form key was refused at %s: %s.", ascii(request.path), verified.value)
            return (yield partial(responses.unissued, request, verified))
        key = key.partition(".")[0]
    html = wants_page(request, source)
    try:
        secret = yield site_key.load
    except BackendUnavailable:
        return (yield partial(_without_store, request, options, html))
    try:
        return (yield partial(_job, request, options, source, key, principal, secret, html))
    except BadKey as error:
        return (yield partial(responses.bad_key, request, error, html=html))


def _job(
    request: HttpRequest, options: Options, source: Any, key: str, principal: Principal, secret: str, html: bool
) -> Job:
    settings, route = config(), route_of(request)
    alias = None if options.atomic is False else settings.database if options.atomic is True else options.atomic
    wait = settings.form_wait if html else settings.wait
    return Job(
        request=request,
        source=source,
        key=key,
        principal=principal,
        scope=decisions.scope_of(secret, tenant_of(request, options), principal.text, request.method or "", route, key),
        mark=mark_of(request, secret, principal),
        fingerprint=fingerprint_of(request, secret, options),
        route=route,
        html=html,
        site_key=secret,
        storage=storage_of(alias),
        alias=alias,
        ttl=settings.ttl if options.ttl is None else options.ttl,
        claim_ttl=settings.claim_ttl if options.claim_ttl is None else options.claim_ttl,
        wait=wait if options.wait is None else options.wait,
        max_body=settings.max_body,
        # the ids of webhooks are all of one, and those whom nobody knows would use up each other's
        quota=None if source == "callable" or principal.kind == "anybody" else settings.max_keys,
        on_crash=options.on_crash or settings.on_crash,  # type: ignore[arg-type]
        on_store_error=options.on_store_error or settings.on_store_error,
        replays=options.anonymous or _first(options.replay_to_credentials, settings.replay_to_credentials),
    )


def mark_of(request: HttpRequest, secret: str, principal: Principal) -> str:
    """Who may look at the outcome on the waiting page: this principal, at this host."""
    return decisions.keyed(secret, "mark", request.get_host().lower(), principal.text)


def _first(given: bool | None, default: bool) -> bool:
    return default if given is None else given


def _without_store(request: HttpRequest, options: Options, html: bool) -> HttpResponse | None:
    """Nobody can tell whether the request has been done."""
    logger.exception("The store of idempotency keys does not answer.")
    if (options.on_store_error or config().on_store_error) == "open":
        return None
    return responses.store_down(request, html=html)


def claim(job: Job) -> Flow[Answering | None]:
    """None: run it, the key is ours. Else what makes the answer, to be called in a thread when all have been asked who
    may refuse. In the exactly-once mode, called inside the transaction."""
    deadline, attempt, late = monotonic() + job.wait, 0, job.wait <= 0
    try:
        record = yield partial(_ask, job, last=late)
        while record is not None:
            answer = yield from _settle(job, record, late=late)
            if answer is not None or job.running:
                return answer
            if late:
                return partial(_in_flight, job)
            yield decisions.pause(attempt)
            attempt, late = attempt + 1, monotonic() >= deadline
            # in a transaction who only looks may have to wait for another one's end
            record = None if job.alias is not None else (yield partial(job.storage.read, job.scope))
            if record is None:
                record = yield partial(_ask, job, last=late)
    except TooManyKeys as error:
        logger.warning("%s has %d idempotency keys that live: no more are taken.", job.whose, job.quota)
        return partial(responses.too_many_keys, job, error.seconds)
    except LockNotAcquired as error:
        job.broken = error.__cause__ is not None
        return partial(_in_flight, job)
    except BackendUnavailable:
        job.broken = True
        logger.exception("The store of idempotency keys does not answer.")
        return None if job.on_store_error == "open" else partial(responses.store_down, job.request, html=job.html)
    _run(job)
    return None


def _ask(job: Job, *, last: bool) -> Record | None:
    if job.alias is None:
        return job.storage.claim(job.claim)
    return job.storage.claim_inside(job.claim, last=last)  # type: ignore[attr-defined]


def _in_flight(job: Job) -> HttpResponse:
    _send(signals.key_conflict, job)
    return responses.in_flight(job)


def _run(job: Job) -> None:
    job.running = True
    if job.alias is None:
        renewal.add(job)
    _send(signals.key_claimed, job)


def _settle(job: Job, record: Record, *, late: bool) -> Flow[Answering | None]:
    """The answer for a key that is there already. None: it is ours now (``job.running``), or wait and look again."""
    verdict = decisions.judge(record, job.fingerprint)
    if verdict in (Verdict.REPLAY, Verdict.TOMBSTONE):
        return partial(_again, job, record)
    if verdict is Verdict.MISMATCH and (record.state != CLAIMED or not job.html or late):
        return partial(_other_data, job, record)
    if verdict is Verdict.HELD:
        return partial(responses.held, job)
    if verdict is Verdict.CRASHED:
        return (yield from _crashed(job, record))
    if verdict is Verdict.TAKE_OVER:
        yield from _take_over(job, record)
    return None


def _again(job: Job, record: Record) -> HttpResponse:
    """The stored answer, or that there was one."""
    answer = record.answer if _may_see(job) else None
    if answer is not None and answer.body is not None and (found := responses.replay(job.request, answer)) is not None:
        _send(signals.key_replayed, job)
        return found
    _send(signals.key_tombstone, job)
    return responses.tombstone(job, answer, withheld=record.answer is not None and answer is None)


def _other_data(job: Job, record: Record) -> HttpResponse:
    _send(signals.key_mismatch, job)
    answer = record.answer if _may_see(job) else None
    return responses.mismatch(job, answer, running=record.state == CLAIMED)


def _may_see(job: Job) -> bool:
    """May a stored answer be given? Not to a credential that only the view checks: it may be revoked by now."""
    if job.principal.kind != "credential" or job.replays or _is_trusted(job):
        return True
    logger.info(
        "The stored answer of %s was not given to a credential that nothing has checked before the view: see "
        "replay_to_credentials.",
        ascii(job.route),
    )
    return False


def _crashed(job: Job, record: Record) -> Flow[Answering | None]:
    _send(signals.key_expired, job)
    policy: Any = job.on_crash
    if callable(policy):
        policy = yield partial(policy, job.request, record)
    if policy not in ("retry", "hold") and not isinstance(policy, HttpResponse):
        raise TypeError(f'on_crash must return "retry", "hold" or an HttpResponse, not {type(policy).__name__}.')
    if policy == "hold":
        yield partial(job.storage.hold, record, job.ttl)
        return partial(responses.held, job)
    yield from _take_over(job, record)
    if isinstance(policy, HttpResponse) and job.running:
        yield from finish(job, policy)
        return lambda: policy
    return None


def _take_over(job: Job, record: Record) -> Flow[None]:
    if (yield partial(job.storage.take_over, record, job.claim)):
        # results of other data, or of a request that was answered, are none of ours
        if record.state != COMPLETED and record.fingerprint == job.fingerprint:
            job.phases = dict(record.phases)
        _run(job)


def ending_of(job: Job, response: HttpResponseBase) -> Ending:
    """What becomes of the key after this answer."""
    if job.kept and response.status_code < 500:
        return Ending.KEEP
    moves_on = any(response.has_header(name) for name in ("HX-Redirect", "HX-Location"))
    status, trusted = response.status_code, _is_trusted(job)
    to_login = not trusted and 300 <= status < 400 and response.get("Location", "").partition("?")[0] == login_url()
    return decisions.ending_of(status, form=job.source == "form", moves_on=moves_on, trusted=trusted, to_login=to_login)


def _is_trusted(job: Job) -> bool:
    """Has anybody checked who asks? Before the view, or by now: a view may have found the user of a token."""
    if job.principal.kind == "user" or job.vouched or is_authenticated(getattr(job.request, "user", None)):
        return True
    return bool(getattr(job.request, "auth", None))  # django-ninja: what its authentication has found


def finish(job: Job, response: HttpResponseBase) -> Flow[None]:
    """Keep the answer, or free the key. A store that fails now is logged: the view has acted."""
    if not job.running:
        return
    leave(job)
    if not job.reached:
        yield from _release(job)  # a decorator above has answered: the view has done nothing
        return
    if job.doubtful and response.status_code >= 500:
        logger.warning(
            "Another middleware failed after %s: its claim runs out, as if the process had died.", ascii(job.route)
        )
        return
    try:
        ending = yield partial(ending_of, job, response)  # who the user is may be a question to the database
        if ending is not Ending.KEEP:
            yield partial(job.storage.release, job.claim, failed=bool(job.phases))
        elif (yield partial(job.storage.complete, job.claim, responses.answer_of(job.request, response, job.max_body))):
            keep_body_when_rendered(job, response)
        else:
            logger.warning("The answer of %s was not kept: its claim was taken over or released.", ascii(job.route))
    except (BackendUnavailable, LockNotAcquired):
        logger.exception("The answer of %s could not be kept.", ascii(job.route))


def free(job: Job) -> Flow[None]:
    """The view has raised: give the key back. A store that fails now is logged, so that the view's error is seen."""
    if not job.running:
        return
    leave(job)
    yield from _release(job)


def _release(job: Job) -> Flow[None]:
    try:
        yield partial(job.storage.release, job.claim, failed=bool(job.phases))
    except (BackendUnavailable, LockNotAcquired):
        logger.exception("The key of %s could not be freed.", ascii(job.route))


def leave(job: Job) -> None:
    """The view has ended, well or not: nothing is renewed any more."""
    job.running = False
    renewal.remove(job)
    sweeper.look(job.storage)


def keep_body_when_rendered(job: Job, response: Any) -> None:
    """A TemplateResponse is rendered after the view: it is done now, its body follows."""
    if getattr(response, "is_rendered", True):
        return

    def add_body(rendered: Any) -> None:
        try:
            job.storage.add_body(job.claim, responses.answer_of(job.request, rendered, job.max_body))
        except (BackendUnavailable, LockNotAcquired):
            logger.exception("The body of the answer of %s could not be kept.", ascii(job.route))

    response.add_post_render_callback(add_body)


def _send(signal: Signal, job: Job) -> None:
    if signal.receivers:
        from .handle import Idempotency

        signal.send_robust(sender=Idempotency, request=job.request, scope=job.scope, route=job.route)
