"""What the list of an admin shows and changes: the column and filter "being edited by", editable lists, actions."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ImproperlyConfigured
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.inspect import func_supports_parameter
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.csrf import csrf_protect

from django_distlock.editing.conf import config
from django_distlock.editing.grants import EditGrant
from django_distlock.editing.http import refusals
from django_distlock.editing.http.forms import FIELD
from django_distlock.editing.http.guard import SaveGuard
from django_distlock.editing.http.refusals import Refusal
from django_distlock.editing.listing import editors, held_of
from django_distlock.editing.records import EditConflict, editor_of
from django_distlock.editing.resources import database_of, resource_of
from django_distlock.editing.versions import version_of
from django_distlock.http import grants
from django_distlock.http.grants import GrantError
from django_distlock.http.transactions import transactions_of_request
from django_distlock.http.visitors import visitor_of
from django_distlock.leases import rows

from . import pages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from django.db.models import Model, QuerySet
    from django.http import HttpRequest, HttpResponse

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.editing.saving import Save
    from django_distlock.leases.records import Resource

COLUMN = "being_edited_by"
SALT = "django_distlock.editing.list"
# The change form has a menu of actions since Django 6.1, with a field of its own.
FORM: Any = getattr(getattr(admin, "ActionLocation", None), "CHANGE_FORM", "no such place")
FORM_ACTION = "CHANGE_FORM-action"
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
        held = held_of(queryset.model, database_of(queryset))
        if choice in ("me", "others"):
            mine = visitor_of(request, config().label_of).principal
            held = {pk: row for pk, row in held.items() if row.is_held_by_another(mine) != (choice == "me")}
        return queryset.exclude(pk__in=list(held)) if choice == "no" else queryset.filter(pk__in=list(held))


@dataclass(kw_only=True)
class ListSave:
    """The save of an editable list, whose rows are all locked. ``shown`` has their versions in the list, by key."""

    save: Save
    mode: str
    fields: Sequence[str]
    shown: dict[str, str]
    conflicts: list[EditConflict] = field(default_factory=list)
    written: list[Resource] = field(default_factory=list)


class LockedRow:
    """The form of a row of an editable list while it is saved.

    Django compares what was sent with the database. So a row that only another user has changed differs, too, and would
    be set back to what the list had shown: it counts as unchanged. A row that both have changed, or that another user
    edits now, has an error, and the list is shown again with what was chosen.
    """

    of: ClassVar[ListSave]
    instance: Any
    errors: Any

    def has_changed(self) -> bool:
        return super().has_changed() and not self._is_theirs()  # type: ignore[misc]

    def full_clean(self) -> None:
        super().full_clean()  # type: ignore[misc]
        if self.instance.pk is None or not self.has_changed():
            return
        resource = resource_of(self.instance)
        self.of.written.append(resource)
        conflict = self._conflict(resource)
        if conflict is None:
            return
        self.of.conflicts.append(conflict)
        if self.of.mode == "enforce":
            refusals.add_conflict(self, Refusal.of(conflict))  # type: ignore[arg-type]
            self.of.shown[resource.pk] = self._version(resource)  # saved again, it replaces theirs

    def _is_theirs(self) -> bool:
        if self.instance.pk is None:
            return False
        resource = resource_of(self.instance)
        shown = self.of.shown.get(resource.pk)
        if shown is None or shown == self._version(resource):
            return False
        _ = self.errors  # the instance has what was sent, once this is cleaned
        return shown == version_of(self.instance, self.of.fields)

    def _conflict(self, resource: Resource) -> EditConflict | None:
        if self.of.shown.get(resource.pk) not in (None, self._version(resource)):
            return EditConflict("changed", resource=resource)  # by whom is not known: perhaps by other code
        row = self.of.save.rows[resource.digest]
        if row.is_held_by_another(self.of.save.owner.principal):
            return EditConflict("held", resource=resource, holder=editor_of(row))
        return None

    def _version(self, resource: Resource) -> str:
        return version_of(self.of.save.objects[resource], self.of.fields)


class EditLockLists:
    """The part of ``EditLockAdmin`` that is about lists."""

    edit_lock_column: bool
    edit_lock_harmless_actions: Collection[str]
    edit_conflict_template: str
    get_edit_config: Callable[[HttpRequest], EditingConfig]
    list_editable: Sequence[str]
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
        return self.edit_lock_column and self.get_edit_config(request).mode != "off"

    def get_changelist_instance(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list; each object knows who edits it, by one query for the page."""
        found: Any = super().get_changelist_instance(request, **kwargs)  # type: ignore[misc]
        if COLUMN in found.list_display:
            edited = editors(list(found.result_list))
            for obj in found.result_list:
                if obj.pk in edited:
                    obj._distlock_editor = edited[obj.pk].label
        return found

    # editable lists

    @method_decorator(csrf_protect)
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None, **kwargs: Any
    ) -> HttpResponse:
        """The list. The rows of an editable one are saved under their locks."""
        page = functools.partial(super().changelist_view, request, extra_context, **kwargs)  # type: ignore[misc]
        settings = self.get_edit_config(request)
        saves = request.method == "POST" and "_save" in request.POST and self.list_editable
        if settings.mode != "off" and saves and self.has_change_permission(request):  # type: ignore[attr-defined]
            return self._save_list(request, settings, page)
        with transactions_of_request():
            response: HttpResponse = page()
        formset = _formset_of(response)
        if settings.mode != "off" and formset is not None:
            shown = (form.instance for form in formset.forms)
            versions = {resource_of(obj).pk: version_of(obj, self.list_editable) for obj in shown}
            self._put_versions(request, response, versions)
        return response

    def _put_versions(self, request: HttpRequest, response: Any, versions: dict[str, str]) -> None:
        value = grants.sign(SALT, visitor_of(request, config().label_of).signer, versions)
        markup = format_html('<input type="hidden" name="{}" value="{}" autocomplete="off">', FIELD, value)
        response.add_post_render_callback(
            functools.partial(pages.put_into_form, form_id="changelist-form", markup=markup)
        )

    def _save_list(
        self, request: HttpRequest, settings: EditingConfig, page: Callable[[], HttpResponse]
    ) -> HttpResponse:
        guard = SaveGuard(request, settings, self._posted_rows(request))
        try:
            shown = _shown_versions(request, guard.visitor.signer, settings)
            if not guard.resources:
                with transactions_of_request():
                    return page()
            # it only locks: a row that another user edits matters only if this user has changed it
            grant = EditGrant(resources=guard.resources, principal=guard.visitor.signer, mode="off")

            def work(save: Save) -> HttpResponse:
                of = ListSave(save=save, mode=settings.mode, fields=self.list_editable, shown=dict(shown))
                return self._save_rows(request, of, page)

            return guard.save(work, grant=grant)
        except Refusal as refusal:
            return refusals.page(request, refusal, template=self.edit_conflict_template)

    def _posted_rows(self, request: HttpRequest) -> list[Resource]:
        """The objects of the rows that were sent."""
        name, database = self.model._meta.pk.name, database_of(self.get_queryset(request))  # type: ignore[attr-defined]
        found = []
        for key, value in request.POST.items():
            if key.startswith("form-") and key.endswith(f"-{name}"):
                with suppress(ValueError, TypeError):
                    found.append(resource_of(self.model, value, database))
        return list(dict.fromkeys(found))

    def _save_rows(self, request: HttpRequest, of: ListSave, page: Callable[[], HttpResponse]) -> HttpResponse:
        gone = [resource for resource in of.save.grant.resources if resource not in of.save.objects]
        if gone:
            raise EditConflict("deleted", resource=gone[0])
        request._distlock_list = of  # type: ignore[attr-defined]
        try:
            response = page()
        finally:
            del request._distlock_list  # type: ignore[attr-defined]
        if (formset := _formset_of(response)) is not None:
            self._show_again(request, response, formset, of)
        elif of.written:
            rows.wrote(of.written, of.save.owner)
            for conflict in of.conflicts:
                text = _("This was saved, although: %(why)s") % {"why": Refusal.of(conflict).text}
                self.message_user(request, text, messages.WARNING)  # type: ignore[attr-defined]
        return response

    def _show_again(self, request: HttpRequest, response: Any, formset: Any, of: ListSave) -> None:
        """The list with errors. Django pairs forms and objects by their place, which another save may have changed."""
        listed = response.context_data["cl"]
        by_key = {obj.pk: obj for obj in listed.result_list}
        listed.result_list = [by_key.get(form.instance.pk, form.instance) for form in formset.forms]
        self._put_versions(request, response, of.shown)
        if of.conflicts:
            response.status_code = refusals.CONFLICT

    def get_changelist_formset(self, request: HttpRequest, **kwargs: Any) -> Any:
        kind = super().get_changelist_formset(request, **kwargs)  # type: ignore[misc]
        of = getattr(request, "_distlock_list", None)
        if of is not None:
            kind.form = type("LockedRow", (LockedRow, kind.form), {"of": of})
        return kind

    def save_form(self, request: HttpRequest, form: Any, change: bool, **kwargs: Any) -> Any:
        """Called by Django for each row: one that this class has not made would be saved over another user's."""
        if hasattr(request, "_distlock_list") and not isinstance(form, LockedRow):
            raise ImproperlyConfigured("get_changelist_formset() of an EditLockAdmin must call super().")
        return super().save_form(request, form, change, **kwargs)  # type: ignore[misc]

    # deletions and actions

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """As Django's, which asks for both ways to delete. What another user edits is "protected": listed, and kept."""
        found, counts, missing, protected = super().get_deleted_objects(objs, request)  # type: ignore[misc]
        settings = self.get_edit_config(request)
        if settings.mode == "enforce":
            principal = visitor_of(request, settings.label_of).principal
            held = pages.held_by_others(pages.deleted_along(objs), principal)
            protected = [*protected, *(pages.sentence(obj, row) for obj, row in held[:MOST_NAMED])]
        return found, counts, missing, protected

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], **kwargs: Any) -> Any:
        """Run the action, unless another user edits one of the chosen objects."""
        chosen = {*request.POST.getlist("action"), *request.POST.getlist(FORM_ACTION)}  # a page has the menu twice
        known = set(self._actions(request, kwargs.get("action_location")))
        settings = self.get_edit_config(request)
        if settings.mode == "enforce" and not chosen & known <= set(self.edit_lock_harmless_actions):
            held = self._held(request, queryset, visitor_of(request, settings.label_of).principal)
            if held:
                text = _("Nothing was done: others are editing some of these objects.")
                self.message_user(request, " ".join([text, *held]), messages.ERROR)  # type: ignore[attr-defined]
                return None
        return super().response_action(request, queryset, **kwargs)  # type: ignore[misc]

    def _held(self, request: HttpRequest, queryset: QuerySet[Any], principal: str) -> list[str]:
        """The chosen objects that others edit, as texts."""
        if request.POST.get("select_across", "").lower() in ("", "0", "false"):  # as Django reads it
            queryset = queryset.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
        held = held_of(self.model, database_of(queryset))
        others = [pk for pk, row in held.items() if row.is_held_by_another(principal)]
        found = queryset.filter(pk__in=others)[:MOST_NAMED] if others else []
        return [pages.sentence(obj, held[obj.pk]) for obj in found]

    def _actions(self, request: HttpRequest, location: Any) -> Any:
        """The actions of a place, by name, as Django asks for them. ``location`` is None before Django 6.1."""
        get_actions = self.get_actions  # type: ignore[attr-defined]
        if location is not None and func_supports_parameter(get_actions, "action_location"):
            return get_actions(request, action_location=location)
        return {} if location is FORM else get_actions(request)

    def _is_form_action(self, request: HttpRequest) -> bool:
        """Does this POST of a change form run an action? Else Django saves the form."""
        sent = request.POST.keys()
        saves = sent & {"_save", "_continue", "_addanother"}
        return FORM_ACTION in sent and not saves and bool(self._actions(request, FORM))


def _formset_of(response: Any) -> Any:
    """The formset of an editable list that is about to be rendered."""
    return getattr((getattr(response, "context_data", None) or {}).get("cl"), "formset", None)


def _shown_versions(request: HttpRequest, principal: str, settings: EditingConfig) -> dict[str, str]:
    """The versions of the rows in the list that was sent; none without the field, as in a test of a plain admin."""
    text = request.POST.get(FIELD)
    try:
        return dict(grants.read(SALT, text, principal, settings.form_ttl)) if text else {}
    except (GrantError, TypeError, ValueError) as error:
        raise Refusal(reason="grant") from error
