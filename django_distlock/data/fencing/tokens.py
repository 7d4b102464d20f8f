"""The fencing token of a write, and the refusal of a late write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

from django.db import connections, models

from django_distlock.exceptions import LockLost

FENCE = "fence"


class Fencing(Protocol):
    """What fencing needs of a lease; :class:`django_distlock.Lease` has it."""

    @property
    def fence(self) -> int: ...

    def ensure_held(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Token:
    number: int
    lease: Fencing | None = None

    def still_held(self) -> int:
        """Return the number. LockLost or LockNotHeld if this process knows that the lease is over."""
        if self.lease is not None:
            self.lease.ensure_held()
        return self.number

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Forms make deep copies of querysets; a lease cannot be copied."""
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        """Another process gets the number only: the lease belongs to this one."""
        return type(self), (self.number,)


def read_token(given: object) -> Token:
    """The token of a lease, or an int as it is. UnsupportedOperation for a lease whose engine has none."""
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given <= models.BigIntegerField.MAX_BIGINT:
            raise ValueError(f"fence must be from 0 to 2**63 - 1, not {given}.")
        return Token(given)
    # on the type: hasattr() of the lease would evaluate the property
    if not (hasattr(type(given), "fence") and hasattr(type(given), "ensure_held")):
        raise TypeError(f"fence must be a lease or an int, not {type(given).__name__}.")
    lease: Any = given
    return Token(lease.fence, lease)


def own_fence(model: type[models.Model]) -> models.Field[Any, Any] | None:
    """The fence in the model's own table, not in that of a parent by multi-table inheritance."""
    fields = model._meta.concrete_model._meta.local_concrete_fields  # type: ignore[union-attr]
    return next((field for field in fields if field.name == FENCE and isinstance(field, models.BigIntegerField)), None)


def refuse_later(rows: models.QuerySet[Any], number: int) -> None:
    """Raise LockLost if any of these rows was written with a later token."""
    connection = connections[rows.db]
    later = rows.filter(**{f"{FENCE}__gt": number}).order_by(f"-{FENCE}")
    if connection.vendor == "mysql" and connection.in_atomic_block:
        # A plain read comes from the snapshot of the transaction, which may be older than the other write.
        # https://dev.mysql.com/doc/refman/8.4/en/innodb-consistent-read.html
        later = later.select_for_update()
    found = next(iter(later.values_list(FENCE, flat=True)[:1]), None)
    if found is not None:
        raise LockLost(
            f"{rows.model._meta.label} was written with the later fencing token {found}; "
            f"this write with {number} came too late and changed nothing."
        )
