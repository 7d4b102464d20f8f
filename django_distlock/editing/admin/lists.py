"""What the list of an admin shows and changes: the column and filter "being edited by", editable lists, actions."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.utils.decorators import method_decorator
from django.utils.inspect import func_supports_parameter
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.csrf import csrf_protect

from django_distlock.editing import store
from django_distlock.editing.grants import EditGrant, sign
from django_distlock.editing.http import refusals
from django_distlock.editing.http.forms import bring_up_to_date, editable_fields, grants_of_rows, open_rows
from django_distlock.editing.http.guard import SaveGuard, SaveRefused
from django_distlock.editing.http.refusals import Group, Refusal
from django_distlock.editing.records import EditConflict, Resource
from django_distlock.editing.resources import database_of, label_of, pk_of, resource_of
from django_distlock.editing.versions import version_of
from django_distlock.http.transactions import transactions_of_request
from django_distlock.http.visitors import visitor_of

from . import pages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from django.db.models import Model, QuerySet
    from django.http import HttpRequest, HttpResponse

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.editing.saving import Save

COLUMN = "being_edited_by"
# The change form has a menu of actions since Django 6.1, with a field of its own.
FORM: Any = getattr(getattr(admin, "ActionLocation", None), "CHANGE_FORM", "no such place")
FORM_ACTION = "CHANGE_FORM-action"
# Leases of one model that the filter and the actions look through.
MOST_HELD = 5_000
# Objects of an action that are named in a refusal.
MOST_NAMED = 20


class EditedFilter(admin.SimpleListFilter):
    """Objects that a user edits now."""

    title = gettext_lazy("being edited")
    parameter_name = "being_edited"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("By anybody")), ("me", _("By me")), ("others", _("By others")), ("no", _("By nobody"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        choice = self.value()
        if choice not in ("yes", "me", "others", "no"):
            return queryset
        settings = getattr(request, "_distlock_edit_config", None)
        mine = visitor_of(request, settings.label_of).principal if settings is not None else ""
        held = held_of(queryset.model, database_of(queryset))
        if choice in ("me", "others"):
            held = {pk: who for pk, who in held.items() if (who == mine) == (choice == "me")}
        return queryset.exclude(pk__in=list(held)) if choice == "no" else queryset.filter(pk__in=list(held))


def held_of(model: type[Model], database: str) -> dict[Any, str]:
    """The primary keys of the objects of a model that are edited now, each with the principal of its holder."""
    found = {}
    for row in store.held(database, label_of(model), MOST_HELD):
        with suppress(ValueError):
            found[pk_of(replace(row.resource, kind=model._meta.label_lower))] = row.owner.principal if row.owner else ""
    return found


class _Rows:
    """The rows of an editable list while they are saved, all of them locked."""

    def __init__(self, save: Save, grants: dict[Resource, EditGrant]) -> None:
        self._save = save
        self._grants = grants
        self.untouched: set[int] = set()  # ids of instances
        self.written: list[Resource] = []

    def judge(self, form: Any) -> EditConflict | None:
        """Judge a row that differs from the database. Return the conflict if its save would destroy another one.

        A row that another user has saved since the list was shown differs too, although this user has not touched it:
        what was sent is then what the list had shown, and the row is left as it is.
        """
        resource = resource_of(form.instance)
        current, grant = self._save.objects.get(resource), self._grants.get(resource)
        if current is None:
            return EditConflict("deleted", resource=resource)
        row = self._save.rows[resource.digest]
        if grant is not None and grant.version != version_of(current, grant.fields):
            if grant.version == version_of(form.instance, grant.fields):
                bring_up_to_date(form.instance, current)
                self.untouched.add(id(form.instance))
                return None
            self.written.append(resource)
            return EditConflict("changed", resource=resource, obj=current, changed_by=row.changed_by)
        self.written.append(resource)
        if row.held and row.owner is not None and row.owner.principal != self._save.owner.principal:
            return EditConflict("held", resource=resource, obj=current, holder=row.editor)
        return None


class EditLockLists:
    """The part of ``EditLockAdmin`` that is about lists."""

    edit_lock_column: bool
    edit_lock_harmless_actions: Collection[str]
    edit_conflict_template: str
    get_edit_config: Callable[[HttpRequest], EditingConfig]
    model: type[Model]
    opts: Any

    # the column and the filter

    @admin.display(description=gettext_lazy("being edited by"))
    def being_edited_by(self, obj: Any) -> str | None:
        """Who edits the object now, in the list."""
        return getattr(obj, "_distlock_editor", None)

    def get_list_display(self, request: HttpRequest, **kwargs: Any) -> Sequence[Any]:
        shown: Sequence[Any] = super().get_list_display(request, **kwargs)  # type: ignore[misc]
        return [*shown, COLUMN] if self._shows_column(request) and COLUMN not in shown else shown

    def get_list_filter(self, request: HttpRequest, **kwargs: Any) -> Sequence[Any]:
        shown: Sequence[Any] = super().get_list_filter(request, **kwargs)  # type: ignore[misc]
        return [*shown, EditedFilter] if self._shows_column(request) and EditedFilter not in shown else shown

    def _shows_column(self, request: HttpRequest) -> bool:
        settings = request._distlock_edit_config = self.get_edit_config(request)  # type: ignore[attr-defined]
        return self.edit_lock_column and settings.mode != "off"

    def get_changelist_instance(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list; each object knows who edits it, by one query for the page."""
        found: Any = super().get_changelist_instance(request, **kwargs)  # type: ignore[misc]
        if COLUMN in found.list_display:
            objects = {resource_of(obj).digest: obj for obj in found.result_list}
            for digest, row in store.read([resource_of(obj) for obj in objects.values()]).items():
                if row.held and row.owner is not None:
                    objects[digest]._distlock_editor = row.owner.label
        return found

    # editable lists

    @method_decorator(csrf_protect)
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None, **kwargs: Any
    ) -> HttpResponse:
        """The list. The rows of an editable one carry a grant each, and are saved under their locks."""
        page = functools.partial(super().changelist_view, request, extra_context, **kwargs)  # type: ignore[misc]
        settings = self.get_edit_config(request)
        if settings.mode == "off":
            with transactions_of_request():
                return page()  # type: ignore[no-any-return]
        if request.method == "POST" and "_save" in request.POST and self._is_editable(request):
            return self._guarded_list(request, settings, page)
        try:
            with transactions_of_request():
                response: Any = page()
        except SaveRefused as refused:
            return refusals.page(request, refused.refusal, [], template=self.edit_conflict_template)
        listed = getattr(response, "context_data", None) or {}
        formset = getattr(listed.get("cl"), "formset", None)
        if formset is not None and request.method == "GET":
            response.add_post_render_callback(functools.partial(self._put_rows, request, settings, formset))
        return response  # type: ignore[no-any-return]

    def _is_editable(self, request: HttpRequest) -> bool:
        return bool(self.list_editable) and self.has_change_permission(request)  # type: ignore[attr-defined]

    def _put_rows(self, request: HttpRequest, settings: EditingConfig, formset: Any, response: HttpResponse) -> None:
        shown = [form.instance for form in formset.forms if form.instance.pk is not None]
        grants = open_rows(request, shown, settings, fields=editable_fields(formset.form) or ())
        pages.put_into_form(response, "changelist-form", pages.hidden_fields(map(sign, grants)))

    def _guarded_list(self, request: HttpRequest, settings: EditingConfig, page: Any) -> HttpResponse:
        guard = SaveGuard(request, settings, [])
        grants, bad = grants_of_rows(request, guard.visitor)
        resources = self._posted_rows(request)
        try:
            if bad:
                raise SaveRefused(Refusal(reason="grant"))
            if not resources:
                with transactions_of_request():
                    return page()  # type: ignore[no-any-return]
            guard.resources = tuple(resources)
            # a row that another user edits matters only if this user has changed it: see _Rows, which judges
            everything = EditGrant(
                resources=guard.resources, principal=guard.visitor.signer, mode="off", permission="list"
            )
            return guard.save(lambda save: self._save_rows(request, _Rows(save, grants), save, page), grant=everything)
        except SaveRefused as refused:
            return self._list_refused(request, refused.refusal)

    def _posted_rows(self, request: HttpRequest) -> list[Resource]:
        """The objects of the rows that were sent, as far as the user may see them."""
        name, database = self.model._meta.pk.name, database_of(self.get_queryset(request))  # type: ignore[attr-defined]
        pks = [value for key, value in request.POST.items() if key.startswith("form-") and key.endswith(f"-{name}")]
        found = []
        for pk in pks:
            with suppress(ValueError, TypeError):
                found.append(resource_of(self.model, pk, database))
        return list(dict.fromkeys(found))

    def _save_rows(self, request: HttpRequest, rows: _Rows, save: Save, page: Any) -> HttpResponse:
        request._distlock_rows = rows  # type: ignore[attr-defined]
        try:
            response: HttpResponse = page()
        finally:
            request._distlock_rows = None  # type: ignore[attr-defined]
        if rows.written:
            store.wrote(rows.written, save.owner.label)
        return response

    def save_form(self, request: HttpRequest, form: Any, change: bool, **kwargs: Any) -> Any:
        if (rows := _rows(request)) is not None and (conflict := rows.judge(form)) is not None:
            if self.get_edit_config(request).mode == "enforce" or conflict.reason == "deleted":
                raise conflict
            text = _("This was saved, although: %(why)s") % {"why": Refusal.of(conflict).text}
            self.message_user(request, text, messages.WARNING)  # type: ignore[attr-defined]
        return super().save_form(request, form, change, **kwargs)  # type: ignore[misc]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool, **kwargs: Any) -> None:
        if not _is_untouched(request, obj):
            super().save_model(request, obj, form, change, **kwargs)  # type: ignore[misc]

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool, **kwargs: Any) -> None:
        if not _is_untouched(request, form.instance):
            super().save_related(request, form, formsets, change, **kwargs)  # type: ignore[misc]

    def log_change(self, request: HttpRequest, obj: Any, message: Any, **kwargs: Any) -> Any:
        if _is_untouched(request, obj):
            return None
        return super().log_change(request, obj, message, **kwargs)  # type: ignore[misc]

    def _list_refused(self, request: HttpRequest, refusal: Refusal) -> HttpResponse:
        if refusal.resource is not None:
            refusal.others = [f"{self.opts.verbose_name} “{refusal.obj or refusal.resource.pk}”"]
        groups = [Group(title="", rows=[row for row in refusals.typed(request) if "-" in row.label])]
        return refusals.page(request, refusal, groups, template=self.edit_conflict_template)

    # actions

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], **kwargs: Any) -> Any:
        """Run the action, unless another user edits one of the chosen objects."""
        if self.get_edit_config(request).mode == "enforce":
            self._refuse_action(request, queryset, kwargs.get("action_location"))
        return super().response_action(request, queryset, **kwargs)  # type: ignore[misc]

    def _form_action(self, request: HttpRequest, page: Callable[[], HttpResponse]) -> HttpResponse | None:
        """The answer to an action of the change form. None if this POST runs none, and so is a save."""
        sent = request.POST.keys()
        if FORM_ACTION not in sent or sent & {"_save", "_continue", "_addanother"} or not self._actions(request, FORM):
            return None
        try:
            with transactions_of_request():
                return page()
        except SaveRefused as refused:
            return refusals.page(request, refused.refusal, [], template=self.edit_conflict_template)

    def _actions(self, request: HttpRequest, location: Any) -> Any:
        """The actions of a place, by name, as Django asks for them. ``location`` is None before Django 6.1."""
        get_actions = self.get_actions  # type: ignore[attr-defined]
        if location is not None and func_supports_parameter(get_actions, "action_location"):
            return get_actions(request, action_location=location)
        return {} if location is FORM else get_actions(request)

    def _refuse_action(self, request: HttpRequest, queryset: QuerySet[Any], location: Any) -> None:
        action = _action(request, location)
        if action in self.edit_lock_harmless_actions or action not in self._actions(request, location):
            return
        chosen = queryset
        if request.POST.get("select_across", "0") != "1":
            chosen = queryset.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
        principal = visitor_of(request, self.get_edit_config(request).label_of).principal
        if action == "delete_selected":
            objects: Collection[Any] = pages.deleted_along(chosen[: pages.MOST_DELETED], database_of(queryset))
        else:
            others = [pk for pk, who in held_of(self.model, database_of(queryset)).items() if who != principal]
            objects = list(chosen.filter(pk__in=others)[:MOST_NAMED]) if others else []
        if held := pages.held_by_others(objects, principal):
            first = held[0][1]
            who = first.owner.label if first.owner is not None else ""
            texts = [pages.sentence(obj, row) for obj, row in held[:MOST_NAMED]]
            messages.error(request, _("Nothing was done: others are editing some of these objects."))
            raise SaveRefused(Refusal(reason="held", who=who, others=texts, deletes=True))


def _action(request: HttpRequest, location: Any) -> str:
    """The name of the action that Django will run: a page may have the menu twice."""
    if location is FORM:
        return request.POST.get(FORM_ACTION, "")
    chosen = request.POST.getlist("action") or [""]
    try:
        return chosen[int(request.POST.get("index", 0))]
    except ValueError:
        return chosen[0]
    except IndexError:
        return chosen[-1]


def _rows(request: HttpRequest) -> _Rows | None:
    return getattr(request, "_distlock_rows", None)


def _is_untouched(request: HttpRequest, obj: Any) -> bool:
    rows = _rows(request)
    return rows is not None and id(obj) in rows.untouched
