"""Locked tasks: the lock below the decorator of the task, so that who runs it takes the lock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.db import transaction

from django_distlock import advisory_lock
from tests.locks.elsewhere import held_elsewhere, is_free
from tests.locks.task import task

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "decorators:invoice:7"
BY_PK = advisory_lock("decorators:invoice:{pk}", using="memory", timeout=0)
SKIP = advisory_lock("decorators:invoice:{pk}", using="memory", timeout=0, on_busy="skip")


@task
@BY_PK
def send(pk: int) -> str:
    return f"sent {pk} {is_free(NAME)}"


@task
@BY_PK
async def asend(pk: int) -> str:
    await asyncio.sleep(0)
    return f"sent {pk} {is_free(NAME)}"


@task
@SKIP
def skip(pk: int) -> str:
    return f"sent {pk} {is_free(NAME)}"


@task
@SKIP
async def askip(pk: int) -> str:
    return f"sent {pk} {is_free(NAME)}"


@task(takes_context=True)
@BY_PK
def send_with_context(context: Any, pk: int) -> str:
    assert context.attempt == 1
    return f"sent {pk} {is_free(NAME)}"


@task(takes_context=True)
@SKIP
async def askip_with_context(context: Any, pk: int) -> str:
    assert context.attempt == 1
    return f"sent {pk} {is_free(NAME)}"


@task
@BY_PK
def fails(pk: int) -> None:
    raise ValueError("the task's own")


TASKS = [send, asend, skip, askip, send_with_context, askip_with_context]
SKIPPING = (skip, askip, askip_with_context)
by_name = pytest.mark.parametrize("job", TASKS, ids=lambda job: job.func.__name__)


def enqueue(job: Any, *args: Any, **kwargs: Any) -> Any:
    return job.enqueue(*args, **kwargs)


def aenqueue(job: Any, *args: Any, **kwargs: Any) -> Any:
    async def send_it() -> Any:
        return await job.aenqueue(*args, **kwargs)

    return asyncio.run(send_it())


both_ways = pytest.mark.parametrize("run", [enqueue, aenqueue])


@both_ways
@by_name
def test_r1_lock_is_held_while_the_task_runs(run: Callable[..., Any], job: Any) -> None:
    assert run(job, 7).return_value == "sent 7 False"
    assert run(job, pk=7).return_value == "sent 7 False"
    assert is_free(NAME)


@both_ways
@by_name
def test_busy_task_fails_or_is_skipped(run: Callable[..., Any], job: Any) -> None:
    with held_elsewhere(NAME):
        result = run(job, 7)
        assert run(job, 8).return_value == "sent 8 False", "another invoice is another lock"
    if job in SKIPPING:
        assert result.status == "SUCCESSFUL"
        assert result.return_value is None
    else:
        assert result.status == "FAILED"
        assert result.errors[0].exception_class_path == "django_distlock.exceptions.LockNotAcquired"


@both_ways
def test_failing_task_gives_the_lock_back(run: Callable[..., Any]) -> None:
    result = run(fails, 7)
    assert result.errors[0].exception_class_path == "builtins.ValueError"
    assert is_free(NAME)


@task
def look() -> bool:
    return is_free(NAME)


@pytest.mark.usefixtures("databases")
def test_a_task_of_on_commit_is_sent_after_the_locks_were_given_back() -> None:
    sent: list[Any] = []
    with transaction.atomic():
        with advisory_lock(NAME, using="memory"):
            transaction.on_commit(lambda: sent.append(look.enqueue()))
        assert not is_free(NAME), "kept for the transaction"
    assert [result.return_value for result in sent] == [True]


@by_name
def test_function_of_the_task_can_be_called(job: Any) -> None:
    """As unit tests do."""
    if not job.takes_context:
        assert job.call(7) == "sent 7 False"


def test_django_6_has_its_own_tasks() -> None:
    """The stand-in is for Django 5.2 alone."""
    assert task.__module__.startswith("django.tasks") == (django.VERSION >= (6, 0))


def test_celery_calls_by_name_and_binds_itself() -> None:
    """Celery calls ``run(*args, **kwargs)`` of a task object; with bind=True the task is its first argument."""

    class Task:
        request = {"retries": 0}  # noqa: RUF012 - as Celery has it

        def __init__(self, function: Any) -> None:
            self.run = function.__get__(self)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.run(*args, **kwargs)

    @Task
    @advisory_lock("decorators:invoice:{pk}", using="memory", timeout=0, on_busy="skip")
    def bound(self: Any, pk: int) -> str:
        assert self.request == {"retries": 0}
        return f"sent {pk}"

    with held_elsewhere(NAME):
        assert bound(7) is None
        assert bound(pk=8) == "sent 8"
    assert bound(7) == "sent 7"
