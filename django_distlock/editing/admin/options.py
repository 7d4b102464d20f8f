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
from django_distlock.editing.grants import ReadyForm
from django_distlock.editing.http import beats, refusals
from django_distlock.editing.http.forms import editable_fields, open_form, ready_forms, rendered
from django_distlock.editing.http.guard import SaveGuard
from django_distlock.editing.http.refusals import Refusal, add_conflict, add_saved_values
from django_distlock.editing.http.rows import keep_rows, new_rows_text
from django_distlock.editing.http.takeover import has_permission
from django_distlock.editing.resources import resource_of, rows_of
from django_distlock.editing.views import SAFE_METHODS
from django_distlock.http.transactions import outside_transactions, transactions_of_request
from django_distlock.validation import refuse_order

from . import pages
from .lists import EditLockLists

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from django.http import HttpRequest, HttpResponse

    from django_distlock.editing.saving import Save

Page = Callable[[], "HttpResponse"]


class EditLockAdmin(EditLockLists):
    """Before ``ModelAdmin`` among the bases: ``class InvoiceAdmin(EditLockAdmin, admin.ModelAdmin)``.

    ``edit_lock`` has ``MODE``, ``WHEN``, ``IDLE`` or ``TAKEOVER`` of ``DISTLOCK_EDITING`` for
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
        return has_permission(request)

    def get_edit_config(self, request: HttpRequest) -> EditingConfig:
        """The options of this admin."""
        return config(**{name.lower(): value for name, value in self.edit_lock.items()})

    def get_edit_fields(self, request: HttpRequest, obj: Any) -> Sequence[str] | None:
        """The names of the fields that make the version."""
        if self.edit_lock_fields is not None:
            return self.edit_lock_fields
        return editable_fields(self.get_form(request, obj, change=True))

    # the change form

    def get_urls(self) -> list[Any]:
        """The pages, which begin their transactions themselves."""
        urls: list[Any] = super().get_urls()  # type: ignore[misc]
        names = {
            f"{self.opts.app_label}_{self.opts.model_name}_{page}"
            for page in ("change", "delete", "changelist", "revision")
        }
        for url in urls:
            if url.name in names:
                outside_transactions(url.callback)
        return urls

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
            return self._beat(request, object_id, settings)
        if settings.mode != "off" and request.method not in SAFE_METHODS and not self._saves_nothing_here(request):
            return self._save(request, object_id, settings, page)
        with transactions_of_request():
            if settings.mode != "off" and request.method in SAFE_METHODS:
                self._open(request, object_id, settings)
            return page()

    def _saves_nothing_here(self, request: HttpRequest) -> bool:
        """Does this POST make another object, or run an action?"""
        return (getattr(self, "save_as", False) and "_saveasnew" in request.POST) or self._is_form_action(request)

    def _beat(self, request: HttpRequest, object_id: str, settings: EditingConfig) -> HttpResponse:
        """The answer to the script of this page."""
        load = functools.partial(self._editable, request, object_id)
        return beats.answer(request, load, settings, self.may_take_over)

    def _editable(self, request: HttpRequest, object_id: str) -> Any:
        """The object. Http404 or PermissionDenied if there is none that the user may change."""
        obj = self._object(request, object_id)
        if obj is not None:
            return obj
        if self.has_change_permission(request):  # type: ignore[attr-defined]
            raise Http404
        raise PermissionDenied

    def _object(self, request: HttpRequest, object_id: str) -> Any:
        """The object, if the user may change it; else None, and Django's own page says so."""
        obj = self._found(request, object_id)
        return obj if obj is not None and self.has_change_permission(request, obj) else None  # type: ignore[attr-defined]

    def _found(self, request: HttpRequest, object_id: str) -> Any:
        """The object that Django's page is about, by the field that the address names; None if there is none."""
        to_field = request.POST.get(TO_FIELD_VAR, request.GET.get(TO_FIELD_VAR))
        if self._is_wrong_field(request):
            return None
        return self.get_object(request, unquote(object_id), to_field)

    def _is_wrong_field(self, request: HttpRequest) -> bool:
        """Does the address name a field that is no key? Django answers that with 400."""
        to_field = request.POST.get(TO_FIELD_VAR, request.GET.get(TO_FIELD_VAR))
        return bool(to_field) and not self.to_field_allowed(request, to_field)  # type: ignore[attr-defined]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None, **kwargs: Any) -> Any:
        """The object, which is loaded once for a request that has locked it."""
        admin, key, obj = getattr(request, "_distlock_loaded", (None, "", None))
        if admin is self and key == object_id:
            return obj
        return super().get_object(request, object_id, from_field, **kwargs)  # type: ignore[misc]

    def _keep(self, request: HttpRequest, object_id: str, obj: Any) -> None:
        """Let Django's page have the object as it is now, unless the page writes another version of it first."""
        if not _reverts(request):
            request._distlock_loaded = (self, unquote(object_id), obj)  # type: ignore[attr-defined]

    def _open(self, request: HttpRequest, object_id: str, settings: EditingConfig) -> None:
        """Make the grant of the form, before the form and its inlines are read."""
        obj = self._object(request, object_id)
        if obj is None:
            return
        fields, inlines = self.get_edit_fields(request, obj), pages.inlines_of(self, request, obj)
        ready = open_form(request, obj, settings, fields=fields, inlines=inlines)
        if ready is None:
            return
        self._keep(request, object_id, obj)
        if _reverts(request):  # what a page claims that is rolled back is lost
            ready = replace(ready, config=replace(settings, when="change"))
        ready_forms(request)[ready.grant.resource] = ready

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """The page with the form, and in it the fields of the edit lock."""
        response: Any = super().render_change_form(request, context, *args, **kwargs)  # type: ignore[misc]
        obj = context.get("original")
        ready = ready_forms(request).get(resource_of(obj)) if obj is not None and not obj._state.adding else None
        if isinstance(ready, ReadyForm) and hasattr(response, "add_post_render_callback"):
            form_id = f"{self.opts.model_name}_form"
            response.add_post_render_callback(
                lambda shown: pages.put_into_form(shown, form_id, rendered(request, ready))
            )
        return response  # type: ignore[no-any-return]

    # saves

    def _save(self, request: HttpRequest, object_id: str, settings: EditingConfig, page: Page) -> HttpResponse:
        obj = self._object(request, object_id)
        if obj is None:
            return self._deleted(request, object_id, settings, page)
        guard = SaveGuard(request, settings, [resource_of(obj)], self.may_take_over)
        try:
            return guard.save(lambda save: self._saved(request, object_id, save, obj, page), obj=obj)
        except Refusal as refusal:
            return self._refused(request, object_id, guard, refusal, obj, page)

    def _saved(self, request: HttpRequest, object_id: str, save: Save, obj: Any, page: Page) -> HttpResponse:
        """Django's own page, with the object as it was locked."""
        self._keep(request, object_id, obj)
        request._distlock_saved = False  # type: ignore[attr-defined]
        response: HttpResponse = page()
        if 300 <= response.status_code < 400 or request._distlock_saved:  # type: ignore[attr-defined]
            save.wrote()
        return response

    def response_change(self, request: HttpRequest, obj: Any, **kwargs: Any) -> HttpResponse:
        """Called by Django once everything is saved; the answer to a popup is no redirect."""
        if (refusal := _refusal(request)) is not None:  # neither get_form() nor save_form() of this class was called
            raise refusal
        request._distlock_saved = True  # type: ignore[attr-defined]
        return super().response_change(request, obj, **kwargs)  # type: ignore[misc,no-any-return]

    def _deleted(self, request: HttpRequest, object_id: str, settings: EditingConfig, page: Page) -> HttpResponse:
        """Django's answer for an object that is not there; a form that showed it gets its text back."""
        kept = None
        if not self._is_wrong_field(request) and self._found(request, object_id) is None:
            kept = SaveGuard(request, settings, []).deleted(self.edit_conflict_template)
        with transactions_of_request():
            return kept or page()

    # a refused save: Django's form again, with errors

    def _refused(
        self, request: HttpRequest, object_id: str, guard: SaveGuard, refusal: Refusal, obj: Any, page: Page
    ) -> HttpResponse:
        fields, inlines = self.get_edit_fields(request, obj), pages.inlines_of(self, request, obj)
        ready = guard.prepare(refusal, obj, fields=fields, inlines=inlines)
        if ready is None:
            return refusals.page(request, refusal, template=self.edit_conflict_template)
        self._keep(request, object_id, obj)
        request._distlock_refusal = refusal  # type: ignore[attr-defined]
        try:
            with transactions_of_request():
                response = page()
        except Refusal:  # a form that get_form() has not made
            return refusals.page(request, refusal, template=self.edit_conflict_template)
        if response.status_code == 200:
            response.status_code = refusals.CONFLICT
        return response

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change=change, **kwargs)  # type: ignore[misc]
        refusal = _refusal(request)
        return form if refusal is None else type(form.__name__, (RefusedForm, form), {"refusal": refusal})

    def save_form(self, request: HttpRequest, form: Any, change: bool, **kwargs: Any) -> Any:
        """Called by Django for a valid form, which the form of a refused save is not."""
        if (refusal := _refusal(request)) is not None:
            raise refusal
        return super().save_form(request, form, change, **kwargs)

    def get_formset_kwargs(self, request: HttpRequest, obj: Any, inline: Any, prefix: str) -> dict[str, Any]:
        """What an inline is made of; after a refused save with rows that fit the database as it is now."""
        params: dict[str, Any] = super().get_formset_kwargs(request, obj, inline, prefix)  # type: ignore[misc]
        if _refusal(request) is None or not inline.has_change_permission(request, obj):
            return params
        if keep_rows(inline.get_formset(request, obj), params):
            may_add = inline.has_add_permission(request, obj)
            messages.warning(request, new_rows_text() if may_add else gone_rows_text(), fail_silently=True)
        return params

    def _create_formsets(self, request: HttpRequest, obj: Any, change: bool) -> Any:
        """The inlines; after a refused save their rows say what is saved now."""
        formsets, inlines = super()._create_formsets(request, obj, change)  # type: ignore[misc]
        if _refusal(request) is not None:
            for formset, inline in zip(formsets, inlines, strict=True):
                if inline.has_change_permission(request, obj):
                    for form in formset.initial_forms:
                        add_saved_values(form)
        return formsets, inlines

    # deletion

    @method_decorator(csrf_protect)
    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None, **kwargs: Any
    ) -> HttpResponse:
        """Ask, and delete under the lock. What would be deleted along is looked at by ``get_deleted_objects()``."""
        page: Page = functools.partial(super().delete_view, request, object_id, extra_context, **kwargs)  # type: ignore[misc]
        settings = self.get_edit_config(request)
        if beats.is_beat(request):  # Django would delete at a POST
            load = functools.partial(self._deletable, request, object_id)
            return beats.answer(request, load, settings, self.may_take_over)
        obj = self._found(request, object_id) if settings.mode != "off" else None
        if obj is None or not self.has_delete_permission(request, obj):  # type: ignore[attr-defined]
            with transactions_of_request():
                return page()
        if request.method in SAFE_METHODS:
            with transactions_of_request():
                ready = open_form(request, obj, settings)
                response: Any = page()
            if ready is not None and hasattr(response, "add_post_render_callback"):
                response.add_post_render_callback(
                    lambda shown: pages.put_before_confirmation(shown, rendered(request, ready))
                )
            return response  # type: ignore[no-any-return]
        guard = SaveGuard(request, settings, [resource_of(obj)])
        try:
            return guard.save(lambda save: self._delete(request, object_id, save, obj, page), obj=obj)
        except Refusal as refusal:
            refusal.deletes = True
            return refusals.page(request, refusal, template=self.edit_conflict_template)

    def _deletable(self, request: HttpRequest, object_id: str) -> Any:
        """The object, if the user may delete it, which does not need the permission to change it."""
        obj = self._found(request, object_id)
        if obj is not None and self.has_delete_permission(request, obj):  # type: ignore[attr-defined]
            return obj
        return self._editable(request, object_id)

    def _delete(self, request: HttpRequest, object_id: str, save: Save, obj: Any, page: Page) -> HttpResponse:
        self._keep(request, object_id, obj)
        response: HttpResponse = page()
        if not rows_of(save.grant.resource).exists():
            save.deleted()
        return response


class RefusedForm:
    """The form of a refused save, with what was typed: it is never valid, and says what is saved now."""

    refusal: ClassVar[Refusal]
    is_bound: bool

    def full_clean(self) -> None:
        super().full_clean()  # type: ignore[misc]
        if self.is_bound:
            add_conflict(self, self.refusal)  # type: ignore[arg-type]


def gone_rows_text() -> str:
    return _("What was deleted meanwhile is at the end of its list. It cannot be saved again: copy what you need.")


def _refusal(request: HttpRequest) -> Refusal | None:
    """Why the save of this request was refused."""
    return getattr(request, "_distlock_refusal", None)


def _reverts(request: HttpRequest) -> bool:
    """Does the page write another version of the object before it loads it?"""
    return getattr(request, "_distlock_reverts", False)
