"""The page of a refused save: theirs and mine, field by field, and what can be done with what was typed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.db.models.fields.files import FieldFile
from django.forms.formsets import DELETION_FIELD_NAME
from django.forms.models import ModelChoiceField
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.formats import localize
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import is_secret
from django_distlock.editing.resources import resource_of, rows_of
from django_distlock.middleware import language_of_texts, text_language

from .forms import CHOICE_FIELD, FIELD, FIELDS, LEASE_FIELD, Posted

if TYPE_CHECKING:
    from django.forms import BaseForm, BoundField
    from django.http import HttpRequest

    from django_distlock.editing.records import EditConflict, Resource

PAGE = "django_distlock/editing/conflict.html"
# Fields that are no text of the visitor.
_OURS = FIELDS | {"csrfmiddlewaretoken"}
_MANAGEMENT = ("TOTAL_FORMS", "INITIAL_FORMS", "MIN_NUM_FORMS", "MAX_NUM_FORMS")
FORBIDDEN = 403
CONFLICT = 409


@dataclass(slots=True, kw_only=True)
class FieldRow:
    """One field: what the database has, and what was typed. ``theirs`` is None if it is not known."""

    label: str
    mine: str
    theirs: str | None = None
    kind: str = "text"  # or "file" or "secret", which the page does not keep

    @property
    def differs(self) -> bool:
        return self.kind != "text" or self.theirs is None or self.mine != self.theirs

    @property
    def lines(self) -> int:
        """The height of the box with the text."""
        return max(1, min(12, sum(1 + len(line) // 30 for line in (self.mine or " ").splitlines())))


@dataclass(slots=True, kw_only=True)
class Group:
    """The fields of one form of the page."""

    title: str
    rows: list[FieldRow] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Refusal:
    """Why a save was refused.

    ``reason``: "held", "changed", "deleted", "saving", "grant" (the form is too old, or of another visitor) or "csrf".
    """

    reason: str
    who: str = ""
    own: bool = False
    obj: Any = None
    can_overwrite: bool = False
    can_review: bool = False  # the view can show the form again, with what was typed
    grant: str = ""  # the signed field that the buttons send
    others: list[str] = field(default_factory=list)  # the objects that are held, as texts
    resource: Resource | None = None
    deletes: bool = False  # a deletion or an action: no text was typed

    @classmethod
    def of(cls, conflict: EditConflict) -> Refusal:
        """The refusal that an error is about."""
        who = conflict.holder.label if conflict.holder is not None else conflict.changed_by
        return cls(reason=conflict.reason, who=who, own=conflict.own, obj=conflict.obj, resource=conflict.resource)

    @property
    def text(self) -> str:
        """What has happened, in one sentence."""
        who = self.who or _("Somebody else")
        texts = {
            "held": _("%(who)s is editing this now.") % {"who": who},
            "changed": _("%(who)s has saved this since you opened the form.") % {"who": who},
            "deleted": _("This was deleted since you opened the form."),
            "saving": _("Others are saving this at the same moment."),
            "grant": _("This form is too old, or it was opened by another user or for another page."),
            "csrf": _("You have logged in since this form was opened, perhaps in another tab."),
        }
        if self.own and self.reason == "held":
            return _("You are editing this in another tab.")
        if self.own and self.reason == "changed":
            return _("You have saved this in another tab since you opened this form.")
        return texts[self.reason]


def add_conflict(form: Any, refusal: Refusal) -> None:
    """Say why the save of a bound form was refused, and what is saved now in each field that differs."""
    form.add_error(None, refusal.text)
    if refusal.reason in ("changed", "grant"):
        add_saved_values(form)


def add_saved_values(form: Any) -> None:
    """What is saved now in each field that differs."""
    form.is_valid()
    for name in form.changed_data:
        if name != DELETION_FIELD_NAME and not is_secret(name) and not isinstance(form.fields[name], forms.FileField):
            shown = _shown(form.fields[name], form[name].initial)
            form.add_error(name, _("Saved now: %(value)s") % {"value": shown})


def compare(mine: BaseForm, theirs: BaseForm | None) -> list[FieldRow]:
    """A row for each visible field of a bound form, beside the same form unbound, which has what the database has."""
    mine.is_valid()
    return [
        _row(bound, theirs[bound.name] if theirs is not None and bound.name in theirs.fields else None)
        for bound in mine
        if not bound.is_hidden
        and not bound.field.disabled
        and (bound.name != DELETION_FIELD_NAME or bound.data)  # of a formset, and not ticked
    ]


def _row(mine: BoundField, theirs: BoundField | None) -> FieldRow:
    label = str(mine.label)
    if isinstance(mine.field.widget, forms.PasswordInput) or is_secret(mine.name):
        return FieldRow(label=label, mine="", kind="secret")
    if isinstance(mine.field, forms.FileField):
        chosen = getattr(mine.data, "name", "") or ""
        current = None if theirs is None else _shown(theirs.field, theirs.value())
        kind = "file" if chosen else "text"
        return FieldRow(label=label, mine=chosen or current or "", theirs=current, kind=kind)
    known = mine.form.cleaned_data.get(mine.name) if mine.name in getattr(mine.form, "cleaned_data", {}) else mine.data
    row = FieldRow(label=label, mine=_shown(mine.field, known))
    if theirs is not None:
        row.theirs = _shown(theirs.field, theirs.value())
        if not mine.field.has_changed(theirs.initial, mine.data):  # written otherwise, and the same
            row.mine = row.theirs
    return row


def _shown(form_field: forms.Field, value: Any) -> str:
    """A value as people read it."""
    if isinstance(form_field, ModelChoiceField):
        return _chosen_objects(form_field, value)
    if isinstance(form_field, forms.ChoiceField):
        labels = {str(key): str(label) for key, label in _flat(form_field.choices)}
        return ", ".join(labels.get(str(one), str(one)) for one in _several(value))
    if isinstance(form_field, forms.BooleanField):
        return _("yes") if value else _("no")
    with suppress(ValidationError, TypeError, ValueError, AttributeError):
        # a value of the model and one that was typed: in the same words
        value = form_field.to_python(form_field.prepare_value(value)) if value not in (None, "") else ""
    return _text(value)


def _chosen_objects(form_field: Any, value: Any) -> str:
    chosen = []
    for one in _several(value):
        if not isinstance(one, Model):
            try:
                key = form_field.to_field_name or "pk"
                one = form_field.queryset.get(**{key: one})
            except (form_field.queryset.model.DoesNotExist, ValueError, TypeError, ValidationError):
                chosen.append(str(one))
                continue
        chosen.append(str(form_field.label_from_instance(one)))
    return ", ".join(chosen)


def _several(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Model, dict)):
        return list(value)
    return [value]


def _flat(choices: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for key, label in choices:
        found.extend(label if isinstance(label, (list, tuple)) else [(key, label)])
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, FieldFile):
        return value.name or ""
    if isinstance(value, datetime) and timezone.is_aware(value):
        value = timezone.localtime(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(one) for one in value)
    return str(localize(value))


def group_of_row(kind: Any, form: Any) -> Group | None:
    """One row of an inline formset, if what was typed differs from what the database has."""
    child = form.instance
    if child.pk is None and not form.has_changed():
        return None
    theirs = kind.form(instance=rows_of(resource_of(child)).first()) if child.pk else None
    rows = [row for row in compare(form, theirs) if row.differs]
    name = str(child._meta.verbose_name)
    return Group(title=f"{name}: {child}" if child.pk else name, rows=rows) if rows else None


def typed(request: HttpRequest) -> list[FieldRow]:
    """A row for each field of the request, for a page that has no form to compare with."""
    rows = []
    for name, values in request.POST.lists():
        if name in _OURS or name.startswith("_") or name.endswith(_MANAGEMENT):
            continue
        if is_secret(name):
            rows.append(FieldRow(label=name, mine="", kind="secret"))
        else:
            rows.extend(FieldRow(label=name, mine=str(value)) for value in values if value)
    rows.extend(
        FieldRow(label=name, mine=str(getattr(file, "name", "")), kind="file") for name, file in request.FILES.items()
    )
    return rows


def page(
    request: HttpRequest, refusal: Refusal, groups: list[Group] | None = None, *, template: str = PAGE
) -> HttpResponse:
    """The answer to a refused form. It keeps every word, and sends it again if the visitor says so."""
    posted = Posted.of(request)
    groups = groups if groups is not None else [Group(title="", rows=typed(request))]
    context = {
        "refusal": refusal,
        "groups": [group for group in groups if group.rows],
        "choices": _choices(request, refusal),
        "choice_field": CHOICE_FIELD,
        "fields": _again(request, refusal, posted),
        "action": request.get_full_path(),
        "files": bool(request.FILES),
        "secrets": _has_secrets(request),
        "language": language_of_texts(),
    }
    status = FORBIDDEN if refusal.reason == "csrf" else CONFLICT
    # typed text may have lone surrogates: the client chooses the charset
    response = HttpResponse(render_to_string(template, context, request).encode("utf-8", "replace"), status=status)
    response["Content-Language"] = text_language()
    response["Cache-Control"] = "no-store"
    response["X-Frame-Options"] = "DENY"  # no other site may frame the buttons
    return response


def _has_secrets(request: HttpRequest) -> bool:
    return any(is_secret(name) for name in request.POST if name not in _OURS)


def _choices(request: HttpRequest, refusal: Refusal) -> list[str]:
    """The buttons. Files and secrets are not kept, so a form that has some cannot be sent again from here."""
    if (
        refusal.deletes
        or refusal.reason == "deleted"
        or request.FILES
        or _has_secrets(request)
        or request.method != "POST"
    ):
        return []
    choices = []
    if refusal.reason in ("held", "saving", "csrf"):
        choices.append("retry")
    elif refusal.can_review and refusal.grant:
        choices.append("review")
    if refusal.can_overwrite and (refusal.reason == "held" or (refusal.reason == "changed" and refusal.grant)):
        choices.append("overwrite")
    return choices


def _again(request: HttpRequest, refusal: Refusal, posted: Posted) -> list[tuple[str, str]]:
    """The fields of the form that the buttons send."""
    fields = [(name, value) for name, values in request.POST.lists() for value in values if name not in _OURS]
    lease = request.POST.get(LEASE_FIELD, "")
    texts = [refusal.grant] if refusal.grant else request.POST.getlist(FIELD)
    return [*fields, *((FIELD, text) for text in texts), (LEASE_FIELD, lease)]
