"""Locked tasks: the lock below the decorator of the task, so that who runs it takes the lock."""

from __future__ import annotations

from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_distlock import advisory_lock
from tests.locks.elsewhere import held_elsewhere, is_free

NAME = "decorators:invoice:7"
BY_PK = advisory_lock("decorators:invoice:{pk}", using="memory", timeout=0)
SKIP = advisory_lock("decorators:invoice:{pk}", using="memory", timeout=0, on_busy="skip")


@BY_PK
def send(pk: int) -> bool:
    return is_free(NAME)


@SKIP
async def askip(pk: int) -> bool:
    return is_free(NAME)


@BY_PK
def send_with_context(context: Any, pk: int) -> bool:
    assert context.attempt == 1
    return is_free(NAME)


@pytest.mark.skipif(django.VERSION < (6, 0), reason="django.tasks came with Django 6.0")
@pytest.mark.parametrize("function", [send, askip, send_with_context])
def test_r1_held_while_the_task_runs_and_a_busy_one_fails_or_is_skipped(function: Any) -> None:
    from django.tasks import task

    job = task(takes_context=function is send_with_context)(function)
    for run in (job.enqueue, async_to_sync(job.aenqueue)):
        assert run(7).return_value is run(pk=7).return_value is False
        with held_elsewhere(NAME):
            result = run(7)
            assert run(8).return_value is False, "another invoice is another lock"
        if function is askip:
            assert (result.status, result.return_value) == ("SUCCESSFUL", None)
        else:
            assert result.status == "FAILED"
            assert result.errors[0].exception_class_path == "django_distlock.exceptions.LockNotAcquired"
        assert is_free(NAME)


@pytest.mark.usefixtures("databases")
def test_a_task_of_on_commit_is_sent_after_the_locks_were_given_back() -> None:
    sent: list[Any] = []
    with transaction.atomic():
        with advisory_lock(NAME, using="memory"):
            transaction.on_commit(lambda: sent.append(is_free(NAME)))
        assert not is_free(NAME), "kept for the transaction"
    assert sent == [True]


def test_celery_calls_by_name_and_binds_itself() -> None:
    """Celery calls ``run(*args, **kwargs)`` of a task object; with bind=True the task is its first argument."""

    class Task:
        def __init__(self, function: Any) -> None:
            self.run = function.__get__(self)

    @Task
    @SKIP
    def bound(self: Any, pk: int) -> str:
        assert isinstance(self, Task)
        return f"sent {pk}"

    with held_elsewhere(NAME):
        assert bound.run(7) is None
        assert bound.run(pk=8) == "sent 8"
    assert bound.run(7) == "sent 7"
