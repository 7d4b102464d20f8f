"""``EditLockAdmin``: an edit lock on everything that a ModelAdmin changes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import messages
from django.contrib.admin.options import TO_FIELD_VAR, ModelAdmin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_protect

from django_distlock.editing.conf import EditingConfig, config
from django_distlock.editing.http import beats, refusals
from django_distlock.editing.http.forms import (
    Posted,
    ReadyForm,
    bring_up_to_date,
    editable_fields,
    open_form,
    ready_forms,
    rendered,
)
from django_distlock.editing.http.guard import SaveGuard, SaveRefused
from django_distlock.editing.http.refusals import Refusal
from django_distlock.editing.http.rows import keep_rows, new_rows_text
from django_distlock.editing.http.takeover import has_takeover, may_take_over
from django_distlock.editing.resources import resource_of, rows_of
from django_distlock.editing.views import SAFE_METHODS
from django_distlock.http.transactions import outside_transactions, transactions_of_request
from django_distlock.http.visitors import user_of
from django_distlock.validation import refuse_order

from . import pages
from .comparison import inlines_of
from .lists import EditLockLists

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from django.http import HttpRequest, HttpResponse

    from django_distlock.editing.saving import Save

Page = Callable[[], "HttpResponse"]


class EditLockAdmin(EditLockLists):
    """Before ``ModelAdmin`` among the bases: ``class InvoiceAdmin(EditLockAdmin, admin.ModelAdmin)``.

    ``edit_lock`` has ``MODE``, ``WHEN``, ``IDLE``, ``TTL_WITHOUT_SCRIPT`` or ``TAKEOVER`` of ``DISTLOCK_EDITING`` for
    this admin, such as ``{"WHEN": "open"}``.
    """

    edit_lock: ClassVar[Mapping[str, Any]] = {}
    # The names of the fields that make the version; None: those of the form.
    edit_lock_fields: Sequence[str] | None = None
    # Show the column and the filter "being edited by" in the list.
    edit_lock_column: bool = True
    # The names of actions that change nothing, and so may run on objects that another user edits.
    edit_lock_harmless_actions: Collection[str] = ()
    edit_conflict_template = refusals.PAGE

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse bases in an order in which Django's views come first and nothing is locked."""
        super().__init_subclass__(**kwargs)
        refuse_order(cls, EditLockAdmin, ModelAdmin)

    # hooks

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        """May the user take the object over from another one? The permission ``takeover_editlease`` by default."""
        return has_takeover(user_of(request))

    def get_edit_config(self, request: HttpRequest) -> EditingConfig:
        """The options of this admin."""
        return config(**{name.lower(): value for name, value in self.edit_lock.items()})

    def get_edit_fields(self, request: HttpRequest, obj: Any) -> Sequence[str] | None:
        """The names of the fields that make the version."""
        if self.edit_lock_fields is not None:
            return self.edit_lock_fields
        return editable_fields(self.get_form(request, obj, change=True))

    # addresses

    def get_urls(self) -> list[Any]:
        """The pages, which begin their transactions themselves."""
        opts = self.opts
        urls = super().get_urls()  # type: ignore[misc]
        for url in urls:
            if url.name in {
                f"{opts.app_label}_{opts.model_name}_{page}" for page in ("change", "delete", "changelist", "revision")
            }:
                outside_transactions(url.callback)
        return urls  # type: ignore[no-any-return]

    # the change form

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None, **kwargs: Any) -> Any:
        """The object, which is loaded once for a request that has locked it."""
        found = _loaded(request).get((id(self), object_id))
        if found is not None:
            return found
        return super().get_object(request, object_id, from_field, **kwargs)  # type: ignore[misc]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change=change, **kwargs)  # type: ignore[misc]
        if getattr(request, "_distlock_review", False):
            return type(form)(form.__name__, (_ReviewedForm, form), {})
        return form

    def get_formset_kwargs(self, request: HttpRequest, obj: Any, inline: Any, prefix: str) -> dict[str, Any]:
        """What an inline is made of; after a refused save with rows that fit the database as it is now."""
        params: dict[str, Any] = super().get_formset_kwargs(request, obj, inline, prefix)  # type: ignore[misc]
        choice = Posted.of(request).choice if "data" in params else ""
        if choice not in ("review", "overwrite") or not inline.has_change_permission(request, obj):
            return params
        if keep_rows(inline.get_formset(request, obj), params) and choice == "review":
            may_add = inline.has_add_permission(request, obj)
            messages.warning(request, new_rows_text() if may_add else gone_rows_text(), fail_silently=True)
        return params

    @method_decorator(csrf_protect)
    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """As Django's. The lock is around what another admin class adds here, such as the transaction of a revision."""
        page: Page = functools.partial(super().change_view, request, object_id, *args, **kwargs)  # type: ignore[misc]
        return self._change(request, object_id, page)

    @method_decorator(csrf_protect)
    def revision_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """The page of django-reversion that goes back to a version: it writes, and rolls back if it only shows."""
        page: Page = functools.partial(super().revision_view, request, object_id, *args, **kwargs)  # type: ignore[misc]
        request._distlock_reverts = True  # type: ignore[attr-defined]
        return self._change(request, object_id, page)

    def _change(self, request: HttpRequest, object_id: str, page: Page) -> HttpResponse:
        settings = self.get_edit_config(request)
        if beats.is_beat(request):
            return beats.answer(
                request, functools.partial(self._editable, request, object_id), settings, self.may_take_over
            )
        if settings.mode == "off":
            with transactions_of_request():
                return page()
        if request.method in SAFE_METHODS:
            with transactions_of_request():
                self._open(request, object_id, settings)
                return page()
        if (getattr(self, "save_as", False) and "_saveasnew" in request.POST) or self._is_form_action(request):
            with transactions_of_request():
                return page()
        return self._guarded_change(request, object_id, settings, page)

    def _object(self, request: HttpRequest, object_id: str) -> Any:
        """The object, if the user may change it; else None, and Django's own page says so."""
        to_field = request.POST.get(TO_FIELD_VAR, request.GET.get(TO_FIELD_VAR))
        if to_field and not self.to_field_allowed(request, to_field):  # type: ignore[attr-defined]
            return None
        obj = self.get_object(request, unquote(object_id), to_field)
        return obj if obj is not None and self.has_change_permission(request, obj) else None  # type: ignore[attr-defined]

    def _beat(self, request: HttpRequest, object_id: str, settings: EditingConfig) -> HttpResponse:
        """The answer to the script of this page."""
        return beats.answer(
            request, functools.partial(self._editable, request, object_id), settings, self.may_take_over
        )

    def _editable(self, request: HttpRequest, object_id: str) -> Any:
        """The object. Http404 or PermissionDenied if there is none that the user may change."""
        obj = self._object(request, object_id)
        if obj is not None:
            return obj
        if self.has_change_permission(request):  # type: ignore[attr-defined]
            raise Http404
        raise PermissionDenied

    def _open(self, request: HttpRequest, object_id: str, settings: EditingConfig) -> None:
        """Make the grant of the form, before the form and its inlines are read."""
        obj = self._object(request, object_id)
        if obj is None:
            return
        inlines = inlines_of(self, request, obj)
        opened = open_form(request, obj, settings, fields=self.get_edit_fields(request, obj), inlines=inlines)
        if opened is None:
            return
        if _reverts(request):  # the form shows another version, and what a page claims that is rolled back is lost
            settings = replace(settings, when="change")
        else:
            bring_up_to_date(obj, opened.obj)
            _loaded(request)[id(self), unquote(object_id)] = obj
        ready_forms(request)[opened.grant.resource] = replace(opened, config=settings)

    def _guarded_change(
        self, request: HttpRequest, object_id: str, settings: EditingConfig, page: Page
    ) -> HttpResponse:
        obj = self._object(request, object_id)
        if obj is None:
            return self._deleted(request, object_id, settings, page)
        guard = SaveGuard(request, settings, [resource_of(obj)])
        try:
            if guard.posted.choice == "review":
                ready = ReadyForm(grant=guard.grant(), config=settings, posted=guard.posted)
                ready_forms(request)[guard.resources[0]] = ready
                request._distlock_review = True  # type: ignore[attr-defined]
                with transactions_of_request():
                    return page()
            return guard.save(
                lambda save: self._saved(request, object_id, save, guard, obj, page),
                may_overwrite=lambda holder: may_take_over(request, settings, obj, holder, self.may_take_over),
            )
        except SaveRefused as refused:
            return self.edit_refused(request, guard, refused.refusal, obj)

    def _saved(
        self, request: HttpRequest, object_id: str, save: Save, guard: SaveGuard, obj: Any, page: Page
    ) -> HttpResponse:
        """Django's own page, with the object as it was locked."""
        if not _reverts(request):
            bring_up_to_date(obj, save.object)
            _loaded(request)[id(self), unquote(object_id)] = obj
        request._distlock_saved = False  # type: ignore[attr-defined]
        if guard.posted.text:
            ready = ReadyForm(grant=save.grant, config=guard.config, posted=guard.posted)
            ready_forms(request)[guard.resources[0]] = ready
        response: HttpResponse = page()
        if 300 <= response.status_code < 400 or request._distlock_saved:  # type: ignore[attr-defined]
            save.wrote()
        return response

    def response_change(self, request: HttpRequest, obj: Any, **kwargs: Any) -> HttpResponse:
        """Called by Django once everything is saved; a popup answers without a redirect."""
        request._distlock_saved = True  # type: ignore[attr-defined]
        return super().response_change(request, obj, **kwargs)  # type: ignore[misc,no-any-return]

    def _deleted(self, request: HttpRequest, object_id: str, settings: EditingConfig, page: Page) -> HttpResponse:
        """Django's answer for an object that is not there; a form that showed it gets its text back."""
        guard = SaveGuard(request, settings, [])
        try:
            if guard.posted.text and self.get_object(request, unquote(object_id)) is None and guard.grant().resources:
                return refusals.page(request, Refusal(reason="deleted"), template=self.edit_conflict_template)
        except SaveRefused:
            pass
        with transactions_of_request():
            return page()

    def edit_refused(self, request: HttpRequest, guard: SaveGuard, refusal: Refusal, obj: Any) -> HttpResponse:
        """The answer to a refused change."""
        inlines = inlines_of(self, request, obj)
        guard.prepare(refusal, obj, fields=self.get_edit_fields(request, obj), inlines=inlines)
        return refusals.page(request, refusal, template=self.edit_conflict_template)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """The page with the form, and in it the fields of the edit lock."""
        response: Any = super().render_change_form(request, context, *args, **kwargs)  # type: ignore[misc]
        obj = context.get("original")
        ready = ready_forms(request).get(resource_of(obj)) if obj is not None and not obj._state.adding else None
        if ready is not None and hasattr(response, "add_post_render_callback"):
            response.add_post_render_callback(functools.partial(self._put_field, request, ready))
        return response  # type: ignore[no-any-return]

    def _put_field(self, request: HttpRequest, ready: ReadyForm, response: HttpResponse) -> None:
        markup = rendered(request, ready)
        pages.put_into_form(response, f"{self.opts.model_name}_form", markup)

    # deletion

    @method_decorator(csrf_protect)
    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None, **kwargs: Any
    ) -> HttpResponse:
        """Ask, and delete under the lock, unless another user edits what would be deleted along."""
        page: Page = functools.partial(super().delete_view, request, object_id, extra_context, **kwargs)  # type: ignore[misc]
        settings = self.get_edit_config(request)
        if beats.is_beat(request):  # Django would delete at a POST
            return beats.answer(
                request, functools.partial(self._editable, request, object_id), settings, self.may_take_over
            )
        obj = self.get_object(request, unquote(object_id)) if settings.mode != "off" else None
        if obj is None or not self.has_delete_permission(request, obj):  # type: ignore[attr-defined]
            with transactions_of_request():
                return page()
        if request.method in SAFE_METHODS:
            with transactions_of_request():
                opened = open_form(request, obj, settings)
                response: Any = page()
            if opened is not None and hasattr(response, "add_post_render_callback"):
                response.add_post_render_callback(functools.partial(self._put_confirmation, request, opened))
            return response  # type: ignore[no-any-return]
        guard = SaveGuard(request, settings, [resource_of(obj)])
        try:
            return guard.save(lambda save: self._delete(request, object_id, save, obj, page))
        except SaveRefused as refused:
            refused.refusal.deletes = True
            return refusals.page(request, refused.refusal, template=self.edit_conflict_template)

    def _put_confirmation(self, request: HttpRequest, ready: ReadyForm, response: HttpResponse) -> None:
        pages.put_before_confirmation(response, rendered(request, ready))

    def _delete(self, request: HttpRequest, object_id: str, save: Save, obj: Any, page: Page) -> HttpResponse:
        _loaded(request)[id(self), unquote(object_id)] = obj
        response: HttpResponse = page()
        if not rows_of(save.grant.resource).exists():
            save.deleted()
        return response


class _ReviewedForm:
    """A form that is shown once more with what was typed, although nothing in it is wrong."""

    is_bound: bool

    def full_clean(self) -> None:
        super().full_clean()  # type: ignore[misc]
        if self.is_bound:
            self.add_error(None, "")  # type: ignore[attr-defined]


def gone_rows_text() -> str:
    return _("What was deleted meanwhile is at the end of its list. It cannot be saved again: copy what you need.")


def _reverts(request: HttpRequest) -> bool:
    """Does the page write another version of the object before it loads it?"""
    return getattr(request, "_distlock_reverts", False)


def _loaded(request: HttpRequest) -> dict[tuple[int, str], Any]:
    """The objects that this request has loaded and brought up to date."""
    found: dict[tuple[int, str], Any] | None = getattr(request, "_distlock_edit_objects", None)
    if found is None:
        found = request._distlock_edit_objects = {}  # type: ignore[attr-defined]
    return found
