"""The admin's add forms: pressed twice, they make one object."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.db import router
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_protect

from django_distlock.concurrency.flow import run
from django_distlock.validation import refuse_order

from .conf import config
from .decorator import once
from .execution import state_of
from .http import forms

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


class IdempotentAdmin:
    """Above ``ModelAdmin``: ``class InvoiceAdmin(IdempotentAdmin, admin.ModelAdmin)``.

    An add form that is sent twice makes one object, and each press ends on the same page. "Save and add another",
    "Save as new" and popups are included. It works with and without the IdempotencyMiddleware. If the model is in the
    database of the keys, key and object are one transaction.
    """

    _distlock_idempotent = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        from django.contrib.admin import ModelAdmin  # needs the models of contenttypes

        super().__init_subclass__(**kwargs)
        refuse_order(cls, IdempotentAdmin, ModelAdmin)

    @method_decorator(csrf_protect)
    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """Save what is added once; change what is there as always."""
        page = partial(super().changeform_view, request, object_id, form_url, extra_context)  # type: ignore[misc]
        if object_id is not None and "_saveasnew" not in request.POST:
            return page()
        if not self.has_add_permission(request):  # type: ignore[attr-defined]  # asked before a stored answer is given
            raise PermissionDenied
        settings, alias = config(), router.db_for_write(self.model)  # type: ignore[attr-defined]
        is_one_transaction = settings.storage == "database" and alias == settings.database
        return run(once(request, {"atomic": True} if is_one_transaction else {}, page))

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """The page with a key in its form, unless nothing can be added with it."""
        response: Any = super().render_change_form(request, context, *args, **kwargs)  # type: ignore[misc]
        if (context.get("add") or context.get("save_as")) and hasattr(response, "add_post_render_callback"):
            response.add_post_render_callback(partial(self._put_key, request, context.get("form_url") or ""))
        return response  # type: ignore[no-any-return]

    def _put_key(self, request: HttpRequest, action: str, response: HttpResponse) -> None:
        """Put the key behind the opening tag of the form: no template has to be extended, so themes keep theirs."""
        tag = re.escape(f"{self.opts.model_name}_form")  # type: ignore[attr-defined]
        field = forms.hidden_field(request, [action])
        text = response.content.decode(response.charset)
        text = re.sub(rf'<form\b[^>]*\bid="{tag}"[^>]*>', lambda found: f"{found[0]}{field}", text, count=1)
        response.content = text.encode(response.charset)

    def response_add(self, request: HttpRequest, obj: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """The answer after an object was added; that of a popup is a page, and uses up the key all the same."""
        state_of(request).keep()
        return super().response_add(request, obj, *args, **kwargs)  # type: ignore[misc, no-any-return]
