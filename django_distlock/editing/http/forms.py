"""The hidden fields of a form: the signed grant, the id of the lease, the id of the tab; and what came back in them."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.html import json_script

from django_distlock.editing import store
from django_distlock.editing.grants import EditGrant, GrantError, Opened, open_grant, read_grant, sign
from django_distlock.editing.records import EditLease, Owner, Resource
from django_distlock.editing.resources import resource_of
from django_distlock.editing.versions import version_of
from django_distlock.http.visitors import visitor_of
from django_distlock.middleware import language_of_texts
from django_distlock.storage.values import ID

from .permissions import may_take_over, permission_of
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

FIELD, LEASE_FIELD, TAB_FIELD = "distlock_edit", "distlock_edit_lease", "distlock_edit_tab"
# What a button of the conflict page asks for: "retry", "review" or "overwrite".
CHOICE_FIELD = "distlock_edit_choice"
FIELDS = frozenset({FIELD, LEASE_FIELD, TAB_FIELD, CHOICE_FIELD})
# The tab of a form whose script does not run: one for each principal.
NO_TAB = "no-script"
PREFETCH_HEADERS = ("Sec-Purpose", "Purpose", "X-Purpose", "X-Moz")


@dataclass(frozen=True, slots=True)
class Posted:
    """What came back in the hidden fields of one form."""

    text: str
    lease: str
    tab: str
    choice: str

    @classmethod
    def of(cls, request: HttpRequest) -> Posted:
        """Read the fields of a POST; empty texts if it has none."""
        form = request.POST
        lease, tab = form.get(LEASE_FIELD, ""), form.get(TAB_FIELD, "")
        return cls(
            form.get(FIELD, ""),
            lease if ID.fullmatch(lease) else "",
            tab if ID.fullmatch(tab) else NO_TAB,
            form.get(CHOICE_FIELD, ""),
        )

    def grant(self, visitor: Visitor) -> EditGrant | None:
        """The grant; None without one. GrantError if it is forged, expired or of another visitor."""
        return read_grant(self.text, visitor.signer) if self.text else None


def owner_of(visitor: Visitor, tab: str) -> Owner:
    """The visitor in one of its tabs."""
    return Owner(principal=visitor.principal, tab=tab if ID.fullmatch(tab) else NO_TAB, label=visitor.label)


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
    objects: Sequence[Model],
    config: EditingConfig,
    *,
    fields: Sequence[str] | None = None,
    inlines: Sequence[Inline] = (),
    visitor: Visitor | None = None,
    leases: dict[str, EditLease] | None = None,
) -> Opened | None:
    """Read the first of ``objects`` as its form is to show it, and make the grant; None if it is deleted.

    ``leases`` are the rows of the objects, if they were read before.
    """
    visitor = visitor or visitor_of(request, config.label_of)
    return open_grant(
        list(dict.fromkeys(resource_of(obj) for obj in objects)),  # a child may be in two inlines
        principal=visitor.signer,
        fields=fields,
        inlines=inlines,
        permission=permission_of(request),
        options=config,
        leases=leases,
    )


def open_rows(
    request: HttpRequest, objects: Sequence[Model], config: EditingConfig, *, fields: Sequence[str]
) -> list[EditGrant]:
    """A grant for each row of a list, in the version of the objects as the list shows them."""
    visitor = visitor_of(request, config.label_of)
    resources = [resource_of(obj) for obj in objects]
    rows = store.read(resources)
    until = time.time() + config.form_ttl
    return [
        EditGrant(
            resources=(resource,),
            principal=visitor.signer,
            mode=config.mode,
            fields=tuple(fields),
            version=version_of(obj, fields),
            writes=(rows[resource.digest].writes if resource.digest in rows else None,),
            permission=permission_of(request),
            until=until,
        )
        for resource, obj in zip(resources, objects, strict=True)
    ]


def bring_up_to_date(obj: Model, current: Model) -> None:
    """Give ``obj`` the values of the row as it is now; it keeps the annotations that its queryset has added.

    What ``prefetch_related()`` has loaded is older than the row: it is dropped, and read again when it is used.
    """
    obj.__dict__.pop("_prefetched_objects_cache", None)
    if obj is current or type(obj)._meta.concrete_model is not type(current)._meta.concrete_model:
        return
    deferred = obj.get_deferred_fields()
    for field in obj._meta.concrete_fields:
        if field.attname in deferred:
            continue
        value = getattr(current, field.attname)
        if getattr(obj, field.attname) != value:
            obj._state.fields_cache.pop(field.name, None)  # the related object
        setattr(obj, field.attname, value)


@dataclass(slots=True, kw_only=True)
class Field:
    """The hidden fields of one form, and the banner of an object that was found held while the page was rendered."""

    text: str
    grant: EditGrant
    lease: str = ""
    tab: str = ""
    holder: EditLease | None = None
    own: bool = False
    can_take_over: bool = False


def is_prefetch(request: HttpRequest) -> bool:
    """Does a browser load this page ahead of a visit that may never come?"""
    return any("prefetch" in request.headers.get(name, "").lower() for name in PREFETCH_HEADERS)


def field_of(request: HttpRequest, grant: EditGrant, config: EditingConfig, visitor: Visitor | None = None) -> Field:
    """The field for a new grant. With ``WHEN = "open"`` this visit takes the lease."""
    visitor = visitor or visitor_of(request, config.label_of)
    field = Field(text=sign(grant), grant=grant)
    if config.when == "open" and request.method == "GET" and not is_prefetch(request):
        _claim(request, field, config, visitor)
    return field


def field_again(request: HttpRequest, grant: EditGrant, posted: Posted) -> Field:
    """The field of a form that is shown again with errors: it keeps the version that it was rendered with."""
    return Field(text=posted.text, grant=grant, lease=posted.lease, tab="" if posted.tab == NO_TAB else posted.tab)


def _claim(request: HttpRequest, field: Field, config: EditingConfig, visitor: Visitor) -> None:
    """Take the lease for as long as a page without a script may stay open; the first beat shortens it."""
    if holds_too_many(field.grant, visitor.principal, config):
        return
    lease = secrets.token_hex(16)
    taken: list[Resource] = []
    for resource in sorted(field.grant.resources, key=lambda resource: resource.digest):
        found = store.claim(resource, owner_of(visitor, NO_TAB), lease, config.ttl_without_script)
        if not isinstance(found, EditLease):
            for each in taken:
                store.release(each, lease)
            field.holder, field.own = found.holder, found.own
            field.can_take_over = not found.own and may_take_over(request, config, None, found.holder)
            return
        taken.append(resource)
    field.lease = lease


def holds_too_many(grant: EditGrant, principal: str, config: EditingConfig) -> bool:
    """Would the objects of ``grant`` be more than one principal may hold?"""
    if config.max_held is None:
        return False
    digests = [resource.digest for resource in grant.resources]
    return store.held_by(principal, store.alias_for(grant.resource), digests) + len(digests) > config.max_held


def html_of(
    request: HttpRequest, field: Field, config: EditingConfig, own_addresses: dict[str, str] | None = None
) -> SafeString:
    """The markup inside the form. The script asks ``own_addresses``, by default those of the site."""
    get_token(request)  # the script needs the cookie or the field
    # cache_page and the cache middleware must not store this page: it is for one visitor
    request._cache_update_cache = False  # type: ignore[attr-defined]
    first = field.grant.resource
    number = secrets.token_hex(4)
    context = {
        "field": field,
        "names": {"grant": FIELD, "lease": LEASE_FIELD, "tab": TAB_FIELD},
        "config": config,
        "key": f"{first.database}.{first.digest[:32]}",
        "version": field.grant.version,
        "texts_id": f"distlock-edit-texts-{number}",
        "texts": json_script(texts(), f"distlock-edit-texts-{number}"),
        "label": field.holder.owner.label if field.holder is not None and field.holder.owner is not None else "",
        "language": language_of_texts(),
        **(own_addresses or addresses()),
    }
    text: SafeString = render_to_string("django_distlock/editing/field.html", context, request)
    return text


def addresses() -> dict[str, str]:
    """The addresses of the script; none if the site has not included ``django_distlock.editing.urls``."""
    try:
        return {name: reverse(f"distlock_editing:{name}") for name in ("beat", "release")}
    except NoReverseMatch:
        return {}


def grants_of_rows(request: HttpRequest, visitor: Visitor) -> tuple[dict[Resource, EditGrant], bool]:
    """The grants of a form with several objects, and whether one of them was refused."""
    found: dict[Resource, EditGrant] = {}
    bad = False
    for text in request.POST.getlist(FIELD):
        try:
            grant = read_grant(text, visitor.signer)
        except GrantError:
            bad = True
            continue
        found[grant.resources[0]] = grant
    return found, bad


def with_mode(grant: EditGrant, mode: str) -> EditGrant:
    """The grant in the mode of the view that saves: that of another page of the same object may be weaker."""
    return grant if grant.mode == mode else replace(grant, mode=mode)


def same_object(grant: EditGrant, resources: Sequence[Resource]) -> bool:
    """Is the grant one for the form of these objects? That they are edited along with another one is not enough."""
    return grant.resources[: len(resources)] == tuple(resources)


def leases_before(request: HttpRequest) -> dict[Resource, dict[str, EditLease]]:
    """The rows that were read before a function view has read its object, by this object."""
    found: dict[Resource, dict[str, EditLease]] | None = getattr(request, "_distlock_edit_leases", None)
    if found is None:
        found = request._distlock_edit_leases = {}  # type: ignore[attr-defined]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyForm:
    """The grant of a form that is about to be rendered. ``posted``: it is shown again, with errors."""

    grant: EditGrant
    config: EditingConfig
    posted: Posted | None = None


def ready_forms(request: HttpRequest) -> dict[Resource, ReadyForm]:
    """The grants that views have made for the forms of this page, by the object of the form."""
    found: dict[Resource, ReadyForm] | None = getattr(request, "_distlock_edit_forms", None)
    if found is None:
        found = request._distlock_edit_forms = {}  # type: ignore[attr-defined]
    return found
