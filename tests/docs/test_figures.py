"""Figures that the documentation states are those of the code."""

from __future__ import annotations

import dataclasses

import pytest

from django_distlock import conf, keys, validation
from django_distlock.backends.cleanup import UNDO_WINDOW
from django_distlock.backends.leasetable import backend
from django_distlock.backends.leasetable.records import GRACE, KEPT
from django_distlock.backends.redis import backend as redis
from django_distlock.backends.redis import connection
from django_distlock.backends.redis.commands import LATE
from django_distlock.backends.sessions import backend as session_backend
from django_distlock.backends.sessions import pool as sessions
from django_distlock.backends.sessions import session
from django_distlock.concurrency import places
from django_distlock.manager import keepalive, registry
from django_distlock.middleware import LockBusyMiddleware
from django_distlock.operations import otel, recorder
from tests.docs.pages import PAGES

DEFAULTS = {field.name: field.default for field in dataclasses.fields(conf.AliasConfig)}
WAITS, LOCKS = session_backend.WAIT_SESSIONS, sessions.LOCKS_PER_SESSION
CLAIMS = [
    ("quickstart", f"A caller waits for at most {DEFAULTS['timeout']:g} seconds"),
    ("quickstart", f"Any text of 1 to {keys.MAX_NAME_LENGTH} characters"),
    ("guarantees", f"silent for {session.HEARTBEAT:g} s, and has {session.STATEMENT_LIMIT:g} s to answer"),
    ("guarantees", "| B | 7 s |"),
    ("backends/postgres", f"| `wait_sessions` | {WAITS} |"),
    ("backends/postgres", f"When it holds {LOCKS}, another is opened"),
    ("backends/postgres", f"closed after {sessions.IDLE:g} seconds"),
    ("backends/postgres", {0.25: "try four times a second"}[session_backend.ASK_EVERY]),
    ("backends/postgres", {1.0: "in the server's queue for a second"}[places.TURN]),
    ("backends/postgres", f"heartbeat after {session.HEARTBEAT:g} s of silence"),
    ("backends/postgres", f"heartbeat after {session.HEARTBEAT:g} s and {session.STATEMENT_LIMIT:g} s to answer"),
    ("backends/mysql", f"| `wait_sessions` | {WAITS} |"),
    ("backends/mysql", f"up to {LOCKS} of them"),
    ("backends/mysql", f"heartbeat after {session.HEARTBEAT:g} s of silence"),
    ("backends/mysql", f"at most {keys.MAX_TEXT_LENGTH} lower-case"),
    ("backends/mysql", f"at most {registry.CACHED_KEYS:,}"),
    ("backends/leasetable", f"closed after {backend.IDLE:g} s without a statement"),
    ("backends/leasetable", f"no sign of life for {GRACE:g} s is passed over"),
    ("backends/leasetable", f"ended more than {KEPT / 3600:g} hours ago"),
    ("backends/redis", f"The first {redis.WAITERS} waiters of a process"),
    ("backends/redis", {0.25: "check four times a second"}[redis.ASK_EVERY]),
    ("backends/redis", f"is closed after {connection.IDLE:g} s"),
    ("backends/redis", {5.0: "for five seconds after the server answers again"}[UNDO_WINDOW]),
    ("usage/fencing", f"for {KEPT / 3600:g} hours"),
    ("usage/waiting", f"for `ttl` seconds, {DEFAULTS['ttl']:g} by default"),
    ("usage/waiting", {3: "every third of that"}[keepalive.RENEWALS_PER_TTL]),
    ("usage/waiting", {10 * 366 * 86400.0: "more than ten years"}[validation.LONGEST]),
    ("usage/waiting", {0.5: "gives the server half a second"}[session_backend.LEAST_PATIENCE]),
    ("backends/redis", {1000: "a difference of up to a second sends none"}[LATE]),
    ("usage/decorators", f"`Retry-After` is {LockBusyMiddleware.retry_after:g} seconds"),
    ("operations", f"1 for up to {LOCKS} of them"),
    ("operations", f"at most `wait_sessions` ({WAITS})"),
    ("operations", f"at most {4 * (1 + WAITS)}, and 4 if"),
    ("operations", f"closed after {sessions.IDLE:g} idle seconds"),
    ("operations", f"At most {recorder.ORDINARY} acquires and releases in a second"),
    ("operations", f"at most {recorder.KEPT:,} timeouts, losses and breaks wait"),
    ("operations", f"After {otel.MOST_LABELS} different labels"),
    ("operations", {1.0: "writes them a second later"}[recorder.DELAY]),
    ("operations", {3600.0: "by the same thread once an hour"}[recorder.PRUNE_EVERY]),
    ("usage/testing", f"stays open for {sessions.IDLE:g} s"),
    ("reference/settings", f"at least {conf.MIN_SITE_KEY_LENGTH} characters"),
]


@pytest.mark.parametrize(("page", "claim"), CLAIMS)
def test_the_figure_on_the_page_is_that_of_the_code(page: str, claim: str) -> None:
    assert claim in " ".join(PAGES[f"docs/{page}.md"].read_text().split())


def test_the_time_until_a_loss_is_known_follows_from_its_parts() -> None:
    assert session.HEARTBEAT + session.STATEMENT_LIMIT + 2 * session_backend.TICK <= 7
