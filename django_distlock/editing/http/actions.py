"""What one request of the script does: claim, adopt, renew, watch, take over, release. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.text import one_line
from django_distlock.editing import store
from django_distlock.editing.grants import EditGrant, GrantError, read_grant
from django_distlock.editing.records import Busy, EditLease, Lost, Resource
from django_distlock.editing.resources import rows_of
from django_distlock.editing.versions import version_of
from django_distlock.http.bodies import BadRequest
from django_distlock.http.visitors import principal_of
from django_distlock.storage.values import ID

from .audit import log_takeover
from .forms import holds_too_many, owner_of
from .permissions import Access, Gate

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.http.visitors import Visitor

Answer = dict[str, Any]
VERBS = ("claim", "adopt", "renew", "watch", "takeover")
# Forms of one page, and addresses of one release. A list with 100 rows asks for those that are being typed into.
MOST_ITEMS = 100
LONGEST_REASON = 500
RESERVED = 5.0  # seconds that a lease is kept for its tab after the page is gone
LONGEST_IDLE = 10 * 86400


@dataclass(frozen=True, slots=True)
class Item:
    """One form of the page, and what the script wants for it."""

    text: str
    verb: str
    lease: str
    previous: str
    reason: str
    idle: float
    fresh: bool

    @classmethod
    def of(cls, given: Any) -> Item:
        """Check one item. BadRequest if it has not the shape of one."""
        if not isinstance(given, Mapping) or given.get("verb") not in VERBS or not isinstance(given.get("grant"), str):
            raise BadRequest("An item is an object with a grant and a verb.")
        ids = {name: given.get(name) or "" for name in ("lease", "previous")}
        if any(not isinstance(value, str) or (value and not ID.fullmatch(value)) for value in ids.values()):
            raise BadRequest("lease and previous are ids of 8 to 64 characters.")
        idle = given.get("idle") or 0
        if isinstance(idle, bool) or not isinstance(idle, (int, float)) or not 0 <= idle <= LONGEST_IDLE:
            idle = 0
        reason = one_line(" ".join(str(given.get("reason") or "").split()), LONGEST_REASON)
        if given["verb"] != "watch" and not ids["lease"]:
            raise BadRequest(f"{given['verb']} needs a lease.")
        return cls(
            given["grant"], given["verb"], ids["lease"], ids["previous"], reason, float(idle), bool(given.get("fresh"))
        )


class Beat:
    """The items of one request, answered in their order and carried out in the order of their resources."""

    def __init__(self, request: HttpRequest, visitor: Visitor, config: EditingConfig, tab: str) -> None:
        self._request = request
        self._visitor = visitor
        self._config = config
        self._owner = owner_of(visitor, tab)
        self._gate = Gate(request, visitor.signer, config.beat)
        self.foreign = False  # a grant that was made out to another principal

    def answers(self, items: list[Item]) -> list[Answer]:
        """Answer each item."""
        answers: dict[int, Answer] = {}
        grants: dict[int, EditGrant] = {}
        for index, item in enumerate(items):
            found = self._grant(item)
            if isinstance(found, EditGrant):
                grants[index] = found
            else:
                answers[index] = found
        # two requests that claim the same objects meet in the same order
        for index in sorted(grants, key=lambda index: grants[index].resources[0].digest):
            if (refused := self._refused(items[index], grants[index])) is not None:
                answers[index] = refused
            elif items[index].verb != "watch":
                answers[index] = self._act(items[index], grants[index])
        answers.update(self._watched(items, {index: grant for index, grant in grants.items() if index not in answers}))
        return [answers[index] for index in range(len(items))]

    def _grant(self, item: Item) -> EditGrant | Answer:
        try:
            return read_grant(item.text, self._visitor.signer)
        except GrantError as error:
            self.foreign = self.foreign or error.reason == "foreign"
            return {"state": "error", "reason": "grant", "detail": error.reason}

    def _refused(self, item: Item, grant: EditGrant) -> Answer | None:
        """The answer if the visitor may not edit: a lease ends, and nothing is said about the object."""
        access = self._access(grant)
        if access.edit:
            return None
        if access.unknown:
            return {"state": "error", "reason": access.unknown}
        if item.lease:
            for resource in grant.resources:
                store.release(resource, item.lease, principal=self._owner.principal)
        return {"state": "lost", "reason": "deleted" if access.gone else "permission", "by": "", "changed": None}

    def _access(self, grant: EditGrant) -> Access:
        return self._gate.access(grant.permission, grant.resource)

    def _act(self, item: Item, grant: EditGrant) -> Answer:
        if item.verb in ("claim", "adopt", "takeover") and holds_too_many(grant, self._owner.principal, self._config):
            return {"state": "error", "reason": "quota"}
        if item.verb == "takeover":
            return self._take_over(item, grant)
        rows: list[EditLease] = []
        for resource in sorted(grant.resources, key=lambda resource: resource.digest):
            found = self._step(item, resource)
            if isinstance(found, EditLease):
                rows.append(found)
                continue
            if item.verb != "renew":  # all or nothing
                for row in rows:
                    store.release(row.resource, item.lease, principal=self._owner.principal)
            return self._lost(found, grant) if isinstance(found, Lost) else self._busy(found, grant)
        news = None if item.verb == "renew" and not item.fresh else self._news(grant, rows)
        return news if news is not None and news["state"] == "lost" else self._held(item, rows, news)

    def _step(self, item: Item, resource: Resource) -> EditLease | Busy | Lost:
        if item.verb == "renew":
            return store.renew(resource, item.lease, self._config.ttl, principal=self._owner.principal, idle=item.idle)
        if item.verb == "adopt":
            return store.adopt(resource, self._owner, item.lease, item.previous, self._config.ttl, idle=item.idle)
        return store.claim(resource, self._owner, item.lease, self._config.ttl, idle=item.idle)

    def _take_over(self, item: Item, grant: EditGrant) -> Answer:
        rows = store.read(grant.resources)
        first = rows.get(grant.resource.digest)
        for resource in grant.resources:
            row = rows.get(resource.digest)
            # a user who edits a child on a page of its own: the admin of the child decides
            apart = row is not None and row.held and (first is None or first.lease != row.lease)
            child = resource if apart and resource != grant.resource else None
            if not self._gate.may_take_over(grant.permission, grant.resource, row, child):
                return {"state": "error", "reason": "permission"}
        taken = []
        for resource in sorted(grant.resources, key=lambda resource: resource.digest):
            found = store.takeover(resource, self._owner, item.lease, self._config.ttl, item.reason)
            if isinstance(found, Busy):
                return self._busy(found, grant)
            taken.append(found)
            log_takeover(self._request, self._visitor, resource, rows.get(resource.digest), item.reason)
        return self._held(item, taken, self._news(grant, taken))

    # answers

    def _held(self, item: Item, rows: list[EditLease], news: Answer | None) -> Answer:
        return {
            "state": "held",
            "lease": item.lease,
            "fence": max(row.fence for row in rows),
            "expires_in": min(row.expires_in for row in rows),
            "changed": news and news["changed"],
        }

    def _busy(self, found: Busy, grant: EditGrant) -> Answer:
        row = found.holder
        label = row.owner.label if row is not None and row.owner is not None else ""
        holder = {
            "label": label,
            "since": row.age if row is not None else 0,
            "idle": row.idle if row is not None else 0,
            "own": found.own,
            "saving": found.saving,
            "expires_in": row.expires_in if row is not None else 0,
        }
        allowed = not found.own and self._gate.offers_takeover(grant.permission, grant.resource, row)
        return {"state": "busy", "holder": holder, "can_take_over": allowed}

    def _lost(self, found: Lost, grant: EditGrant) -> Answer:
        rows = [found.row] if found.row is not None else []
        news = self._news(grant, rows)
        changed = None if news is None else news["changed"]
        reason = "deleted" if news is not None and news["state"] == "lost" else found.reason
        return {"state": "lost", "reason": reason, "by": found.by, "changed": changed}

    def _news(self, grant: EditGrant, rows: Iterable[EditLease]) -> Answer | None:
        """What has happened to the object since the form was rendered; None if nothing has."""
        obj = next(iter(rows_of(grant.resource)), None)  # at most one row: no need to order it
        if obj is None:
            return {"state": "lost", "reason": "deleted", "by": "", "changed": None}
        if (counted := self._counted(grant, rows)) is not None:
            return counted
        inlines = {inline: list(inline.rows(obj, grant.database)) for inline in grant.inlines}
        if grant.version is not None and version_of(obj, grant.fields, inlines) != grant.version:
            return {"state": "held", "changed": {"by": "", "at": None}}
        return None

    def _counted(self, grant: EditGrant, rows: Iterable[EditLease]) -> Answer | None:
        """The latest save under the lock since the form was rendered, by the counters in the rows."""
        writes = dict(zip((resource.digest for resource in grant.resources), grant.writes, strict=False))
        for row in rows:
            if row.resource.digest in writes and row.has_changed_since(writes[row.resource.digest]):
                if row.ended == "deleted" and not row.lease:
                    return {"state": "lost", "reason": "deleted", "by": row.changed_by, "changed": None}
                at = row.changed_at
                return {"state": "held", "changed": {"by": row.changed_by, "at": at and at.isoformat()}}
        return None

    # watching

    def _watched(self, items: list[Item], grants: dict[int, EditGrant]) -> dict[int, Answer]:
        """Answer those that only look, with one query."""
        if not grants:
            return {}
        rows = store.read([resource for grant in grants.values() for resource in grant.resources])
        return {index: self._seen(items[index], grant, rows) for index, grant in grants.items()}

    def _seen(self, item: Item, grant: EditGrant, rows: Mapping[str, EditLease]) -> Answer:
        mine = [row for resource in grant.resources if (row := rows.get(resource.digest)) is not None]
        for row in mine:
            if row.held and row.owner is not None:
                own = row.owner.principal == self._owner.principal
                if own and row.owner.tab == self._owner.tab:
                    continue  # this tab's own, by a form beside this one
                return self._busy(Busy(holder=row, own=own, saving=row.saving), grant)
        # the object itself is read only for a page that is about to open again
        news = self._counted(grant, mine) or (self._news(grant, mine) if item.fresh else None)
        if news is not None and news["state"] == "lost":
            return news
        return {"state": "free", "changed": news and news["changed"]}


def release(texts: list[str], leases: list[str], *, reserve: bool) -> None:
    """Give leases back: the id of a lease and the signed field of its form are enough."""
    for text, lease in list(zip(texts, leases, strict=False))[:MOST_ITEMS]:
        if not ID.fullmatch(lease):
            continue
        try:
            grant = read_grant(text, None)
        except GrantError:
            continue
        for resource in grant.resources:
            store.release(resource, lease, RESERVED if reserve else 0.0, principal=principal_of(grant.principal))
