"""A refused save: the form again, with what is saved now; or a page with the typed text where no form can be shown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.forms.formsets import DELETION_FIELD_NAME
from django.forms.models import ModelChoiceField
from django.utils import timezone
from django.utils.formats import localize
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import is_secret
from django_distlock.http import answers

from .forms import FIELDS

if TYPE_CHECKING:
    from django.forms import BaseForm
    from django.http import HttpRequest, HttpResponse

    from django_distlock.editing.records import EditConflict
    from django_distlock.leases.records import Resource

PAGE = "django_distlock/editing/conflict.html"
# Fields that are no text of the visitor.
_OURS = FIELDS | {"csrfmiddlewaretoken"}
_MANAGEMENT = ("TOTAL_FORMS", "INITIAL_FORMS", "MIN_NUM_FORMS", "MAX_NUM_FORMS")
FORBIDDEN = 403
CONFLICT = 409


@dataclass(kw_only=True, eq=False)
class Refusal(Exception):
    """Why a save was refused; nothing was written.

    ``reason``: "held", "changed", "deleted", "saving", "grant" (the form is too old, or of another visitor) or "csrf".
    ``obj`` is the object as it is now; None if it is deleted or was not read.
    """

    reason: str
    who: str = ""
    obj: Any = None
    grant: str = ""  # the signed field of the form that is shown again
    resource: Resource | None = None
    deletes: bool = False  # a deletion or an action: no text was typed

    @classmethod
    def of(cls, conflict: EditConflict) -> Refusal:
        """The refusal that an error is about."""
        who = conflict.holder.label if conflict.holder is not None else conflict.changed_by
        return cls(reason=conflict.reason, who=who, obj=conflict.obj, resource=conflict.resource)

    @property
    def replaces(self) -> bool:
        """Does the form, if it is sent again, replace what is saved now?"""
        return self.reason in ("changed", "grant")

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
        return texts[self.reason]


def add_conflict(form: BaseForm, refusal: Refusal) -> None:
    """Show in a bound form why its save was refused, and what is saved now beside each field that differs.

    The form must be bound to the object as it is now: ``refusal.obj``.
    """
    form.errors  # noqa: B018 - it is cleaned now, unless it is just being
    again = _("If you save again, your text replaces what is saved now.") if refusal.replaces else _("Not saved yet.")
    form.add_error(None, f"{refusal.text} {again}")
    add_saved_values(form)


def add_saved_values(form: BaseForm) -> None:
    """Put what is saved now beside each field of a bound form that differs, if the form has been told. Secrets are not
    shown."""
    form.errors  # noqa: B018 - errors are added to those of the form
    for name in form.changed_data:
        bound = form[name]
        secret = isinstance(bound.field.widget, forms.PasswordInput) or is_secret(name)
        if name in form.initial and not (secret or bound.is_hidden or name == DELETION_FIELD_NAME):
            shown = _shown(bound.field, bound.initial)
            form.add_error(name, _("Saved now: %(value)s") % {"value": shown or _("nothing")})


def _shown(form_field: forms.Field, value: Any) -> str:
    """A value of a form as people read it."""
    if isinstance(form_field, forms.BooleanField):
        return _("yes") if value else _("no")
    values = form_field.prepare_value(value)
    values = values if isinstance(values, (list, tuple)) else [values]
    keys = [str(key) for key in values if key not in (None, "")]
    if isinstance(form_field, ModelChoiceField):
        rows: Any = form_field.queryset
        rows = rows.filter(**{f"{form_field.to_field_name or 'pk'}__in": keys})
        return ", ".join(str(form_field.label_from_instance(row)) for row in rows)
    if isinstance(form_field, forms.ChoiceField):
        labels = {str(key): str(label) for key, label in _flat(form_field.choices)}
        return ", ".join(labels.get(key, key) for key in keys)
    return ", ".join(map(_text, values))


def _flat(choices: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for key, label in choices:
        found.extend(label if isinstance(label, (list, tuple)) else [(key, label)])
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime) and timezone.is_aware(value):
        value = timezone.localtime(value)
    return str(localize(value))


@dataclass(slots=True, kw_only=True)
class FieldRow:
    """One field that was sent. ``kind``: "text"; or "file" or "secret", which the page does not keep."""

    label: str
    mine: str
    kind: str = "text"

    @property
    def lines(self) -> int:
        """The height of the box with the text."""
        return max(1, min(12, sum(1 + len(line) // 30 for line in (self.mine or " ").splitlines())))


def typed(request: HttpRequest) -> list[FieldRow]:
    """A row for each field of the request that has something in it."""
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


def page(request: HttpRequest, refusal: Refusal, *, template: str = PAGE) -> HttpResponse:
    """The answer where no form can be shown: every word that was typed, and a button that sends it again.

    The button only repeats the request: it must not pass if the object has changed. Files and secrets are not kept, so
    a form that has some has no button.
    """
    rows = [] if refusal.deletes else typed(request)
    complete = request.method == "POST" and all(row.kind == "text" for row in rows)
    context = {
        "refusal": refusal,
        "rows": rows,
        "again": complete and not refusal.deletes and refusal.reason in ("held", "saving", "csrf"),
        "incomplete": not complete and bool(rows),
        "fields": [
            (name, value) for name, values in request.POST.lists() if name != "csrfmiddlewaretoken" for value in values
        ],
        "action": request.get_full_path(),
    }
    status = FORBIDDEN if refusal.reason == "csrf" else CONFLICT
    response = answers.page(request, template, status, **context)
    response["X-Frame-Options"] = "DENY"  # no other site may frame the button
    return response
