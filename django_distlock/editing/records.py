"""The values of edit locks: what is edited, who edits it, and the error of a refused edit. No Django, no SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from django_distlock.exceptions import DistlockError
from django_distlock.leases.records import Resource, Row

if TYPE_CHECKING:
    from datetime import datetime

ConflictReason = Literal["held", "changed", "deleted", "saving"]
# The row of an object: its holder, if it has one, and who wrote it last. The sender of the signals.
EditLease: TypeAlias = Row


class Owner(NamedTuple):
    """A piece of code that edits: ``principal`` says who it is, ``label`` is what others are shown."""

    principal: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Editor:
    """The holder of an edit lock, as others see it: no ids. ``idle`` and ``expires_in`` are seconds."""

    label: str
    since: datetime
    idle: float
    expires_in: float


def editor_of(row: Row) -> Editor | None:
    """The holder of an object, as others see it; None if it is free."""
    if not row.held:
        return None
    return Editor(label=row.label, since=row.since, idle=row.idle, expires_in=row.expires_in)


class EditConflict(DistlockError):
    """The object is being edited by another user, or was changed.

    ``reason`` is "held" (``holder`` edits it now), "changed" (since the form was rendered; by ``changed_by``),
    "deleted" or "saving" (other transactions kept it busy). ``obj`` is the object as it is in the database; None if it
    is deleted or was not read.
    """

    def __init__(
        self,
        reason: ConflictReason,
        *,
        holder: Editor | None = None,
        changed_by: str = "",
        obj: Any = None,
        resource: Resource | None = None,
    ) -> None:
        self.reason: ConflictReason = reason
        self.holder = holder
        self.changed_by = changed_by
        self.obj = obj
        self.resource = resource
        super().__init__(_message(reason, holder, changed_by, resource))


def _message(reason: str, holder: Editor | None, changed_by: str, resource: Resource | None) -> str:
    what = "The object" if resource is None else f"{resource.model} {resource.pk}"
    if reason == "held":
        return f"{what} is being edited by {holder.label if holder else 'another user'}."
    if reason == "changed":
        return f"{what} was changed{f' by {changed_by}' if changed_by else ''} after the form was rendered."
    if reason == "deleted":
        return f"{what} was deleted after the form was rendered."
    return f"{what} is busy: other transactions are saving it."
