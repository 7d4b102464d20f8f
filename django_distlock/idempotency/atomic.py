"""The exactly-once mode: claim, view and stored answer in one transaction."""

from __future__ import annotations

import inspect
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, transaction
from django.http import HttpResponseBase

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.concurrency.flow import in_task, run
from django_distlock.storage.dialect import contended
from django_distlock.storage.transactions import in_transaction

from .execution import claim, end, finish, logger, store
from .http import responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from .handle import Idempotency, KeyedRequest


def exactly_once(attempt: KeyedRequest, state: Idempotency, call: Callable[[], Any]) -> Any:
    """Run claim, view and stored answer in one transaction: all three are committed, or none."""
    assert attempt.alias is not None  # noqa: S101 - for the type checker
    try:
        with ExitStack() as stack:
            try:
                # joins the transaction of ATOMIC_REQUESTS without a savepoint, but never that of a TestCase
                outer = in_transaction(attempt.alias)
                stack.enter_context(transaction.atomic(using=attempt.alias, savepoint=not outer))
            except Error as error:  # no transaction has begun
                logger.exception("The store of idempotency keys does not answer.")
                if attempt.options.on_store_error == "open" and not contended(error):
                    return call()
                return responses.store_down(attempt.request, html=attempt.html)
            answering = _claim_inside(attempt)
            if answering is None:
                state.attempt = attempt
                return _finish_inside(attempt, state, call())
        return answering()  # outside: a page may query, which a failed transaction refuses
    except AnswerNotStored:
        logger.exception("The answer of %s could not be kept, so nothing was done.", ascii(attempt.claim.route))
        return responses.store_down(attempt.request, html=attempt.html)
    finally:
        if not state.late:
            end(attempt)


def _claim_inside(attempt: KeyedRequest) -> Any:
    # only a view that runs although the claim has failed needs a savepoint
    optional = attempt.options.on_store_error == "open"
    with transaction.atomic(using=attempt.alias) if optional else nullcontext():
        answering = run(claim(attempt))
        if attempt.broken:  # after a failed statement PostgreSQL refuses all others
            transaction.set_rollback(True, using=attempt.alias)
    return answering


class AnswerNotStored(Exception):
    """The answer could not be stored: the transaction must not be committed."""


def is_left_to_middleware(attempt: KeyedRequest, state: Idempotency, response: Any) -> bool:
    """Does the middleware store the answer later, as an ordinary claim: because it is no response yet, but what an
    operation of django-ninja returns; or after the commit of another database than that of the keys, which may fail?
    Without the middleware the commit itself has it stored."""
    if isinstance(response, HttpResponseBase):
        opened = _transactions_elsewhere(attempt)
        state.late = state.has_middleware and bool(opened)
        return state.late or (bool(opened) and _stores_after_commit(attempt, response, opened[-1]))
    if attempt.options.atomic or not state.has_middleware:
        raise TypeError(
            f"@idempotent keeps the response of a view, not {type(response).__name__}. In django-ninja use the "
            "IdempotencyMiddleware, or put it around the operation: @decorate_view(idempotent(atomic=True)) below "
            "@api.post."
        )
    attempt.alias, state.late = None, True
    return True


def _transactions_elsewhere(attempt: KeyedRequest) -> list[str]:
    """The aliases whose transactions end after the view, in this order, if the answer is no part of one."""
    if attempt.alias is not None or in_task():
        return []
    return [alias for alias in connections if in_transaction(alias)]


def _stores_after_commit(attempt: KeyedRequest, response: HttpResponseBase, alias: str) -> bool:
    """Store the answer once the transaction of ``alias`` is committed, which Django begins first and ends last.

    Of a rollback nobody tells: the claim runs out then, as if the process had died. False: nothing is to be waited for.
    """
    connection: Any = connections[alias]
    if response.status_code >= 500 or not connection.in_atomic_block or connection.needs_rollback:
        return False
    if any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):  # there is no commit
        return False

    def store_answer() -> None:
        attempt.running = True
        finish(attempt, response)

    end(attempt)
    transaction.on_commit(store_answer, using=alias, robust=True)
    return True


def _finish_inside(attempt: KeyedRequest, state: Idempotency, response: Any) -> Any:
    if inspect.isawaitable(response):
        if inspect.iscoroutine(response):
            response.close()
        raise TypeError("atomic=True needs a sync view: Django's transactions are not for async code.")
    if is_left_to_middleware(attempt, state, response):
        return response
    # the store was down and on_store_error is "open", or the view has chosen to roll back
    if not attempt.running or connections[attempt.alias].needs_rollback:  # type: ignore[index]
        return response
    if response.status_code >= 500:
        transaction.set_rollback(True, using=attempt.alias)
        return response
    try:
        if not store(attempt, response):
            raise AnswerNotStored("The claim is gone: a savepoint from before it was rolled back.")
    except (BackendUnavailable, LockNotAcquired) as error:
        raise AnswerNotStored from error
    return response
