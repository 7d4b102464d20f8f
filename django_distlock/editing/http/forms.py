"""The hidden fields of a form: the signed grant, the id of the lease; and what came back in them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils.html import json_script

from django_distlock.editing.grants import EditGrant, ReadyForm, open_grant, read_grant, sign
from django_distlock.http.visitors import visitor_of
from django_distlock.leases import rows
from django_distlock.leases.records import Row
from django_distlock.middleware import language_of_texts
from django_distlock.storage.values import ID, shown

from .texts import texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import Model
    from django.forms import BaseForm
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.editing.versions import Inline
    from django_distlock.http.visitors import Visitor
    from django_distlock.leases.records import Resource

FIELD, LEASE_FIELD = "distlock_edit", "distlock_edit_lease"
# What the button "Take over and save mine" asks for: "overwrite".
CHOICE_FIELD = "distlock_edit_choice"
FIELDS = frozenset({FIELD, LEASE_FIELD, CHOICE_FIELD})
PREFETCH_HEADERS = ("Sec-Purpose", "Purpose", "X-Purpose", "X-Moz")


@dataclass(frozen=True, slots=True)
class Posted:
    """What came back in the hidden fields of one form."""

    text: str
    lease: str
    choice: str

    @classmethod
    def of(cls, request: HttpRequest) -> Posted:
        """Read the fields of a POST; empty texts if it has none."""
        form = request.POST
        lease = form.get(LEASE_FIELD, "")
        return cls(
            form.get(FIELD, ""),
            lease if ID.fullmatch(lease) else "",
            form.get(CHOICE_FIELD, ""),
        )

    def grant(self, visitor: Visitor) -> EditGrant | None:
        """The grant; None without one. GrantError if it is forged, expired or of another visitor."""
        return read_grant(self.text, visitor.signer) if self.text else None


def editable_fields(form: BaseForm | type[BaseForm] | None) -> tuple[str, ...] | None:
    """The names of the model's columns that a form edits; None, which is all of them, for a form of no model."""
    model = getattr(getattr(form, "_meta", None), "model", None)
    if form is None or model is None:
        return None
    names = getattr(form, "fields", None) or getattr(form, "base_fields", {})
    own = {field.name for field in model._meta.concrete_fields}
    return tuple(sorted(name for name in names if name in own))


def open_form(
    request: HttpRequest,
    obj: Model,
    config: EditingConfig,
    *,
    fields: Sequence[str] | None = None,
    inlines: Sequence[Inline] = (),
    visitor: Visitor | None = None,
    leases: dict[str, Row] | None = None,
) -> ReadyForm | None:
    """Read the object again, as its form is to show it, and make the grant; None if it is deleted.

    ``leases`` has the row of the object, if it was read before.
    """
    visitor = visitor or visitor_of(request, config.label_of)
    signer = visitor.signer
    return open_grant(obj, principal=signer, fields=fields, inlines=inlines, options=config, leases=leases)


def is_prefetch(request: HttpRequest) -> bool:
    """Does a browser load this page ahead of a visit that may never come?"""
    return any("prefetch" in request.headers.get(name, "").lower() for name in PREFETCH_HEADERS)


def rendered(request: HttpRequest, ready: ReadyForm, endpoint: str = "") -> SafeString:
    """The markup inside the form. The script asks at ``endpoint``, by default the address of this page.

    A form that is shown again has the fields that were posted. With ``WHEN = "open"`` this visit takes the lease.
    """
    lease, holder = ready.lease, None
    if not ready.text and ready.config.when == "open" and request.method == "GET" and not is_prefetch(request):
        lease, holder = _claimed(request, ready)
    get_token(request)  # the script needs the cookie or the field
    # cache_page and the cache middleware must not store this page: it is for one visitor
    request._cache_update_cache = False  # type: ignore[attr-defined]
    resource, visitor = ready.grant.resource, visitor_of(request, ready.config.label_of)
    row = ready.leases.get(resource.digest)
    number = secrets.token_hex(4)
    context = {
        "grant": ready.text or sign(ready.grant),
        "lease": lease,
        "names": {"grant": FIELD, "lease": LEASE_FIELD},
        "config": ready.config,
        "endpoint": endpoint or request.get_full_path(),
        "key": f"{resource.database}.{resource.digest[:32]}",
        # for the script, which keeps text with the version that it was typed against; saves of relations count, too
        "version": f"{ready.grant.version}.{row.writes if row and row.changed_at else 0}",
        "saved_by_visitor": visitor.logged_in and row is not None and row.changed_by == shown(visitor.label),
        "texts_id": f"distlock-edit-texts-{number}",
        "texts": json_script(texts(), f"distlock-edit-texts-{number}"),
        "holder": holder,
        "refused": ready.refused,
        "choice": CHOICE_FIELD if ready.can_overwrite else "",
        "language": language_of_texts(),
    }
    text: SafeString = render_to_string("django_distlock/editing/field.html", context, request)
    return text


def _claimed(request: HttpRequest, ready: ReadyForm) -> tuple[str, str]:
    """Take the lease for as long as somebody may be idle: a page without a script has no beats. The first shortens it.

    The id of the lease, or the label of the other user who holds it.
    """
    config, resource = ready.config, ready.grant.resource
    lease = secrets.token_hex(16)
    found = rows.take("claim", resource, visitor_of(request, config.label_of), lease, config.idle)
    if isinstance(found, Row):
        return lease, ""
    return "", found.holder.label if found.holder is not None and not found.own else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedForm:
    """What the view of a form locks, whose grant the template tag makes.

    ``leases`` has the row, if it was read before the view has read the object.
    """

    resource: Resource
    config: EditingConfig
    leases: dict[str, Row] | None = None

    def tell(self, request: HttpRequest) -> None:
        """Let the template tag know that the view has an edit lock."""
        ready_forms(request).setdefault(self.resource, self)


def ready_forms(request: HttpRequest) -> dict[Resource, ReadyForm | LockedForm]:
    """What views have made for the forms of this page, by the object of the form."""
    found: dict[Resource, ReadyForm | LockedForm] | None = getattr(request, "_distlock_edit_forms", None)
    if found is None:
        found = request._distlock_edit_forms = {}  # type: ignore[attr-defined]
    return found
