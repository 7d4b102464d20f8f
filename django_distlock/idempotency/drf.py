"""The mixin for the REST framework: keys are claimed after authentication, permissions and throttles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import transaction
from django.views.generic.base import View

from django_distlock.concurrency.flow import run
from django_distlock.storage.transactions import in_transaction
from django_distlock.validation import refuse_order

from .conf import config
from .decisions import SAFE_METHODS
from .decorator import atomic_aliases, once, seen
from .execution import state_of
from .http.requests import HEADER, may_be_read
from .http.waiting_page import is_outcome_request
from .options import EXEMPT, Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest


class IdempotentMixin:
    """Above ``APIView`` or a view set: ``class Orders(IdempotentMixin, APIView)``.

    The principal is the user that the framework has authenticated, and a stored answer is given only if the permissions
    still allow it. ``idempotency_options`` are the options of ``@idempotent``. With ``atomic``, and always under
    ``ATOMIC_REQUESTS`` of the keys' database, an exception of the framework rolls back and frees the key.
    """

    idempotency_in_view = True
    idempotency_options: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_order(cls, IdempotentMixin, View)
        options = Options(**cls.idempotency_options)
        if options.atomic:
            atomic_aliases.add(options.atomic)

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        plain: HttpRequest = request._request
        if HEADER in plain.META and may_be_read(plain):
            _ = plain.body  # a permission may parse the request, after which it could not be compared
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        name = request.method.lower()
        handler = getattr(self, name, None)
        if is_outcome_request(plain):
            view = partial(handler or self.http_method_not_allowed, request, *args, **kwargs)  # type: ignore[attr-defined]
            setattr(self, name, lambda *args, **kwargs: run(seen(plain, view)))
        if request.method not in SAFE_METHODS and handler is not None and not getattr(handler, EXEMPT, False):
            setattr(self, name, partial(self._once, handler))

    def _options(self) -> Options:
        """The options; in the transaction of the request (ATOMIC_REQUESTS) those of the exactly-once mode.

        For another claim the copies would wait until that transaction ends.
        """
        options, settings = Options(**self.idempotency_options), config()
        if options.atomic is False and settings.storage == "database" and in_transaction(settings.database):
            return replace(options, atomic=True)
        return options

    def _once(self, handler: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        call = partial(self._answered, handler, request, *args, **kwargs)
        vouched = request.successful_authenticator is not None
        return run(once(request._request, self._options(), self, call, vouched=vouched))

    def _answered(self, handler: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        """The answer of the handler, or, if there is a key, that of the framework to its exception."""
        attempt = state_of(request._request).attempt
        if attempt is None:
            return handler(request, *args, **kwargs)
        try:
            return handler(request, *args, **kwargs)
        except Exception as error:
            response = self.handle_exception(error)  # type: ignore[attr-defined]
            response.exception = True
            if attempt.alias is not None:
                transaction.set_rollback(True, using=attempt.alias)
            return response
