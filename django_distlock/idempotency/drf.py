"""The mixin for the REST framework: keys are claimed after authentication, permissions and throttles."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from django.views.generic.base import View

from django_distlock.concurrency.flow import run
from django_distlock.validation import refuse_order

from .conf import options_of_view
from .decisions import SAFE_METHODS, BadKey
from .decorator import atomic_aliases, once
from .http.requests import keep_readable
from .options import EXEMPT

if TYPE_CHECKING:
    from collections.abc import Callable


class IdempotentMixin:
    """Above ``APIView`` or a view set: ``class Orders(IdempotentMixin, APIView)``.

    The principal is the user that the framework has authenticated, and a stored answer is given only if the permissions
    still allow it. ``idempotency_options`` are the options of ``@idempotent``. With ``atomic``, and always under
    ``ATOMIC_REQUESTS`` of the keys' database, claim, view and answer are one transaction. An exception of the framework
    is not stored: it frees the key.
    """

    _distlock_idempotent = True
    idempotency_options: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_order(cls, IdempotentMixin, View)
        if atomic := options_of_view(cls.idempotency_options).get("atomic"):
            atomic_aliases.add(atomic)

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        with suppress(BadKey):  # the client has gone: told when the key is claimed
            keep_readable(request._request)  # a permission may parse the request
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        name = request.method.lower()
        handler = getattr(self, name, None)
        if request.method not in SAFE_METHODS and handler is not None and not getattr(handler, EXEMPT, False):
            setattr(self, name, partial(self._once, handler))

    def _once(self, handler: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        given = options_of_view(self.idempotency_options)
        return run(once(request._request, given, partial(handler, request, *args, **kwargs)))
