"""``django.tasks`` where Django has it (6.0); before, a stand-in that calls a task function in the same way.

The stand-in follows django.tasks.base.Task (call, acall) and the immediate backend: a task runs where it is sent, the
context comes first if it is wanted, and an error becomes the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

    @dataclass
    class Result:
        return_value: Any = None
        errors: list[Any] = field(default_factory=list)

        @property
        def status(self) -> str:
            return "FAILED" if self.errors else "SUCCESSFUL"

        def fail(self, error: Exception) -> None:
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            self.errors.append(SimpleNamespace(exception_class_path=path))

    @dataclass(frozen=True)
    class Task:
        func: Callable[..., Any]
        takes_context: bool = False

        def _args(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (SimpleNamespace(attempt=1), *args) if self.takes_context else args

        def call(self, *args: Any, **kwargs: Any) -> Any:
            if iscoroutinefunction(self.func):
                return async_to_sync(self.func)(*args, **kwargs)
            return self.func(*args, **kwargs)

        async def acall(self, *args: Any, **kwargs: Any) -> Any:
            if iscoroutinefunction(self.func):
                return await self.func(*args, **kwargs)
            return await sync_to_async(self.func)(*args, **kwargs)

        def enqueue(self, *args: Any, **kwargs: Any) -> Result:
            result = Result()
            try:
                result.return_value = self.call(*self._args(args), **kwargs)
            except Exception as error:
                result.fail(error)
            return result

        async def aenqueue(self, *args: Any, **kwargs: Any) -> Result:
            result = Result()
            try:
                result.return_value = await self.acall(*self._args(args), **kwargs)
            except Exception as error:
                result.fail(error)
            return result

    def task(function: Callable[..., Any] | None = None, *, takes_context: bool = False) -> Any:
        return partial(Task, takes_context=takes_context) if function is None else Task(function, takes_context)


__all__ = ["task"]
