"""The values of edit locks: what is edited, who edits it, and the error of a refused edit. No Django, no SQL."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from django_distlock.exceptions import DistlockError
from django_distlock.leases.records import Row
from django_distlock.storage.values import LONGEST_PRINCIPAL

if TYPE_CHECKING:
    from datetime import datetime

ConflictReason = Literal["held", "changed", "deleted", "saving"]
LostReason = Literal["taken_over", "other_tab", "expired", "deleted", "broken", "saved", "released"]


@dataclass(frozen=True, slots=True)
class Resource:
    """One object that can be edited, in one database.

    ``model`` is the label of its topmost concrete model, ``pk`` the exact text of its primary key there. ``kind`` is
    the label of the model that the form edits: a child of multi-table inheritance has the lock of its parent.
    ``schema`` is that of the tenant, "" without tenants: they have objects with the same keys.
    """

    database: str
    model: str
    pk: str
    kind: str = field(default="", compare=False)
    schema: str = ""

    @property
    def digest(self) -> str:
        """The key of the row: databases compare text by rules of their own, digests are compared exactly."""
        schema = f"{self.schema}\0" if self.schema else ""
        return hashlib.sha256(f"{schema}{self.model}\0{self.pk}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A user, a visitor, or a piece of code.

    ``principal`` says who it is ("user:5"); ``label`` is what others are shown.
    """

    principal: str
    label: str

    def __post_init__(self) -> None:
        if not 0 < len(self.principal) <= LONGEST_PRINCIPAL:
            raise ValueError(f"principal must have 1 to {LONGEST_PRINCIPAL} characters.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EditLease(Row):
    """The row of an object: its holder, if it has one, and who wrote it last.

    ``saving`` is set if another transaction had locked the row: a save was in progress.
    """

    resource: Resource
    saving: bool = False

    @property
    def owner(self) -> Owner | None:
        """The present or last holder; None if the lease was given back."""
        return Owner(principal=self.principal, label=self.label) if self.lease else None

    @property
    def editor(self) -> Editor | None:
        """The holder, as others see it."""
        if not self.held:
            return None
        return Editor(label=self.label, since=self.since, idle=self.idle, expires_in=self.expires_in)

    def has_changed_since(self, writes: int | None) -> bool:
        """Has a save under the lock been committed since ``writes`` was read? None: there was no row then.

        A new row has no ``changed_at``. Rows are deleted only after FORM_TTL without a save, when no rendered form can
        be older.
        """
        return self.changed_at is not None and self.writes != writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Editor:
    """The holder of an edit lock, as others see it: no ids. ``idle`` and ``expires_in`` are seconds."""

    label: str
    since: datetime
    idle: float
    expires_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The answer to a claim that is refused.

    ``own``: the holder is another tab of the same principal. ``saving``: a save is in progress, and the claim did not
    wait for it. ``holder`` is None if the row is not visible yet.
    """

    holder: EditLease | None
    own: bool = False
    saving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The answer to the renewal of a lease that is gone. ``by`` is the label of the present or last holder.

    ``row`` is the row as it is now; None if there is none.
    """

    reason: LostReason
    by: str = ""
    row: EditLease | None = None


class EditConflict(DistlockError):
    """The object is being edited by another user, or was changed.

    ``reason`` is "held" (``holder`` edits it now), "changed" (since the form was rendered; by ``changed_by``),
    "deleted" or "saving" (other transactions kept it busy). ``own`` is set if the other side is the same user.
    ``obj`` is the object as it is in the database; None if it is deleted or was not read.
    """

    def __init__(
        self,
        reason: ConflictReason,
        *,
        holder: Editor | None = None,
        own: bool = False,
        changed_by: str = "",
        obj: Any = None,
        resource: Resource | None = None,
    ) -> None:
        self.reason: ConflictReason = reason
        self.holder = holder
        self.own = own
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
