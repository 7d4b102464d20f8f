"""``GET leases/events/``: server-sent events, so that a browser need not ask often. On ASGI only.

A stream of WSGI would keep a worker. Events cost no promise if they get lost: the client asks slowly beside the stream.
Format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import Error, connections
from django.http import HttpResponse, StreamingHttpResponse

from django_distlock import BackendUnavailable
from django_distlock.browser import store
from django_distlock.browser.conf import config
from django_distlock.concurrency import clock
from django_distlock.http.bodies import private, private_json
from django_distlock.http.transactions import outside_transactions
from django_distlock.http.visitors import leave_session_alone, visitor_of
from django_distlock.storage.values import ID

from .endpoints import note_outage, unavailable
from .watching import Watch, watcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

HEARTBEAT = 15.0  # seconds of silence that no proxy takes for the end
# Seconds after which the browser has to connect again, and shows again who it is. A log-out ends the stream by then.
LIFETIME = 300.0
RECONNECT = 1000  # milliseconds
MOST_STREAMS = 20  # of one principal in one process


@outside_transactions
async def events_view(request: HttpRequest) -> HttpResponseBase:
    """The stream for the leases ``?id=...&id=...`` of the sender."""
    if request.method != "GET":
        response = private_json({"reason": "method"}, 405)
        response["Allow"] = "GET"
        return response
    if not isinstance(request, ASGIRequest):
        # on WSGI each stream would keep a worker: the client polls. No error status, which Django would report as one
        return private(HttpResponse(status=204))  # https://html.spec.whatwg.org/multipage/server-sent-events.html
    ids = request.GET.getlist("id")
    if not all(ID.fullmatch(lease) for lease in ids):
        return private_json({"reason": "request", "detail": "id is the id of a lease."}, 400)
    opened = await sync_to_async(_opened)(request, ids)
    if not isinstance(opened, tuple):
        return opened
    stream = StreamingHttpResponse(_frames(*opened), content_type="text/event-stream")
    private(stream)
    stream["Cache-Control"] = "no-store, no-transform"
    # nginx would collect the events, and compress them: it does neither with these
    stream["X-Accel-Buffering"] = "no"
    stream["Content-Encoding"] = "identity"
    return stream


events_view.login_required = False  # type: ignore[attr-defined]


def _opened(request: HttpRequest, ids: list[str]) -> tuple[Any, ...] | HttpResponse:
    """What a stream needs: the database, the principal, and the names of its leases. Or the refusal."""
    settings = config()
    try:
        leave_session_alone(request)
        principal = visitor_of(request, settings.label_of).holder
        if watcher.count(principal) >= MOST_STREAMS:
            return private_json({"reason": "quota"}, 429)
        most = (settings.max_held or 1000) + (settings.max_waiting or 1000)
        return settings.database, principal, store.names_of(settings.database, principal, ids[:most])
    except (Error, BackendUnavailable):
        note_outage()
        return unavailable()
    finally:
        # the thread of this request lives as long as the stream, and needs no connection any more
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()


async def _frames(alias: str, principal: str, names: dict[str, tuple[str, bool]]) -> AsyncIterator[bytes]:
    watch = Watch(alias, principal, names)
    watcher.add(watch)
    end = clock.now() + LIFETIME
    try:
        yield f"retry: {RECONNECT}\n: {len(names)} watched\n\n".encode()
        while (left := end - clock.now()) > 0:
            news = await watch.next(min(HEARTBEAT, left))
            yield b"".join(_frame(*event) for event in news) or b": alive\n\n"
    finally:
        watcher.discard(watch)


def _frame(kind: str, facts: dict[str, str]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(facts)}\n\n".encode()
