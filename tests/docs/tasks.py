"""What the page about tasks and messages imports, as stand-ins, and what it must do with a message."""

from __future__ import annotations

import asyncio
import sys
import uuid
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.db import connection, models
from django.utils import timezone

from testproject.scenes.models import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator


def decorator(function: Any = None, **options: Any) -> Any:
    return function if function is not None else lambda function: function


def function_of(task: Any) -> Any:
    """A task of Django 6 cannot be called; its function can."""
    return getattr(task, "func", task)


class Scheduler:
    def scheduled_job(self, *trigger: Any, **options: Any) -> Any:
        return decorator


@contextmanager
def task_modules() -> Iterator[dict[str, Any]]:
    """The decorators of task libraries, and of Django if it has none, which hand the function on: what is tested is
    that the lock and its template fit the function. And a reader's apps with reports and receipts; the reports that
    were filled are in `filled`, the transfers that were made in `moved`."""

    class Report(models.Model):
        day = models.DateField(unique=True)

        class Meta:
            app_label = "registration"

        def __str__(self) -> str:
            return str(self.day)

    doubles = {
        "celery": {"shared_task": decorator},
        "django_rq": {"job": decorator},
        "huey.contrib.djhuey": {"db_task": decorator},
        "dramatiq": {"actor": decorator},
        "apscheduler.schedulers.background": {"BackgroundScheduler": Scheduler},
        **({} if django.VERSION >= (6, 0) else {"django.tasks": {"task": decorator}}),
        "shop": {},
        "shop.models": {"Report": Report},
        "wallet": {},
        "wallet.models": {"Receipt": Receipt},
    }
    filled: list[Any] = []
    moved: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, contents in doubles.items():
            module = ModuleType(name)
            vars(module).update(contents)
            patch.setitem(sys.modules, name, module)
        with connection.schema_editor() as editor:
            editor.create_model(Report)
        try:
            yield {"fill": filled.append, "filled": filled, "move_money": moved.append, "moved": moved}
        finally:
            with connection.schema_editor() as editor:
                editor.delete_model(Report)


def slots_are_done_once(names: dict[str, Any]) -> None:
    for _ in range(2):
        names["daily_report"]()
    (report,) = names["filled"]
    assert report.day == timezone.localdate()


def delivered_twice(names: dict[str, Any]) -> None:
    message = {"id": str(uuid.uuid4())}
    for _ in range(2):
        asyncio.run(names["on_transfer"](message))
    assert names["moved"] == [message]
    assert Receipt.objects.filter(pk=message["id"]).delete()[0] == 1
