"""``django.tasks`` where Django has it (6.0); before, a stand-in that calls a task function in the same way.

The stand-in follows the immediate backend: a task runs where it is sent, the context comes first if it is wanted, and
an error becomes the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import django
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

if TYPE_CHECKING:
    from collections.abc import Callable

if django.VERSION >= (6, 0):
    from django.tasks import task
else:

    @dataclass(frozen=True)
    class Task:
        func: Callable[..., Any]
        takes_context: bool = False

        def enqueue(self, *args: Any, **kwargs: Any) -> Any:
            return async_to_sync(self.aenqueue)(*args, **kwargs)

        async def aenqueue(self, *args: Any, **kwargs: Any) -> Any:
            args = (SimpleNamespace(attempt=1), *args) if self.takes_context else args
            call = self.func if iscoroutinefunction(self.func) else sync_to_async(self.func)
            try:
                return SimpleNamespace(status="SUCCESSFUL", return_value=await call(*args, **kwargs), errors=[])
            except Exception as error:
                path = f"{type(error).__module__}.{type(error).__qualname__}"
                return SimpleNamespace(status="FAILED", errors=[SimpleNamespace(exception_class_path=path)])

    def task(function: Callable[..., Any] | None = None, *, takes_context: bool = False) -> Any:
        return partial(Task, takes_context=takes_context) if function is None else Task(function, takes_context)


__all__ = ["task"]
