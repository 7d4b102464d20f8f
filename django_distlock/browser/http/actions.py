"""What one request of distlock.js does: acquire, renew, release, list. Values in, values out."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.http import Http404

from django_distlock.browser import store
from django_distlock.browser.grants import LockGrant, LockGrantError, read_grant
from django_distlock.browser.records import BrowserLease, Full, LeaseLost, Quota, Waiting
from django_distlock.http.bodies import BadRequest
from django_distlock.http.csrf import is_sent_by_this_site
from django_distlock.http.visitors import stored
from django_distlock.storage.values import ID

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_distlock.browser.conf import BrowserConfig
    from django_distlock.http.visitors import Visitor

Facts = dict[str, Any]
MOST_RENEWED = 100
# Seconds between two requests of one waiter. The next one asks often, and each further place a little less often: when
# its turn comes it still has the interval of the place before. A thousand waiters send some 90 requests a second.
HEAD, STEP, TAIL = 0.5, 0.1, 15.0
# Browsers slow down the timers of a hidden tab. Those whose turn is near still ask often: the others wait for them.
HIDDEN, HIDDEN_HEAD = 60.0, 5.0
SHORTEST_TTL = 1.0


def interval_of(place: int, *, hidden: bool) -> float:
    """The seconds after which a waiter with ``place`` others ahead has to ask again."""
    if hidden:
        return min(HIDDEN_HEAD * (place + 1), HIDDEN)
    return min(HEAD + STEP * place, TAIL)


class ScriptRefused(Exception):
    """The request is refused, with this status and these facts."""

    def __init__(self, status: int, **facts: Any) -> None:
        self.status = status
        self.facts = facts
        super().__init__(status, facts)


@dataclass(frozen=True, slots=True)
class Wish:
    """The body of an acquire."""

    grant: str
    lease: str
    ttl: float | None
    queue: bool
    hidden: bool
    again: bool  # it has waited before: to look first saves a statement

    @classmethod
    def of(cls, given: Facts) -> Wish:
        """Check the body. BadRequest if it has not the shape of one."""
        flags = {name: given.get(name, name == "queue") for name in ("queue", "hidden", "again")}
        if not all(isinstance(value, bool) for value in flags.values()):
            raise BadRequest("queue, hidden and again are true or false.")
        return cls(_grant_of(given), _id_of(given), _ttl_of(given), **flags)


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """One lease of a batch."""

    grant: str
    lease: str
    fence: int
    ttl: float | None

    @classmethod
    def batch(cls, given: Facts) -> list[LeaseRenewal]:
        """Check the body. BadRequest if it has not the shape of one."""
        found = given.get("leases")
        if not isinstance(found, list) or len(found) > MOST_RENEWED:
            raise BadRequest(f"leases is a list of at most {MOST_RENEWED}.")
        batch = [cls._of(entry) for entry in found]
        if len({item.lease for item in batch}) < len(batch):  # the answers go by the id
            raise BadRequest("leases has each id once.")
        return batch

    @classmethod
    def _of(cls, given: Any) -> LeaseRenewal:
        if not isinstance(given, Mapping):
            raise BadRequest("A lease is an object with an id, a fence and a grant.")
        fence = given.get("fence")
        if isinstance(fence, bool) or not isinstance(fence, int) or not 0 <= fence < 2**53:
            raise BadRequest("fence is the whole number that came with the lease.")
        return cls(_grant_of(given), _id_of(given), fence, _ttl_of(given))


def _grant_of(given: Mapping[str, Any]) -> str:
    grant = given.get("grant")
    if not isinstance(grant, str):
        raise BadRequest("grant is the text that the server has signed.")
    return grant


def _id_of(given: Mapping[str, Any]) -> str:
    lease = given.get("id")
    if not isinstance(lease, str) or not ID.fullmatch(lease):
        raise BadRequest("id is 8 to 64 letters, digits, hyphens or underscores.")
    return lease


def _ttl_of(given: Mapping[str, Any]) -> float | None:
    ttl = given.get("ttl")
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not ttl > 0):
        raise BadRequest("ttl is a number of seconds above zero.")
    return ttl


class Desk:
    """The leases of the sender of one request."""

    def __init__(self, request: HttpRequest, visitor: Visitor, config: BrowserConfig) -> None:
        self._request = request
        self._visitor = visitor
        self._config = config
        self._alias = config.database
        self._principal = visitor.holder

    # acquire

    def acquire(self, wish: Wish) -> BrowserLease | Waiting:
        """Take the lock, or a place in its queue. ScriptRefused without a grant, a permission or quota left."""
        try:
            grant = self._grant(wish.grant)
        except LockGrantError as error:
            raise self._no_grant(error) from error
        if not self._permitted(grant.name):
            store.release(self._alias, wish.lease, principal=self._principal)
            raise ScriptRefused(403, reason="permission")
        found = store.acquire(
            self._alias,
            grant.name,
            lease=wish.lease,
            principal=self._principal,
            label=self._visitor.label,
            ttl=self._ttl(grant, wish.ttl),
            max_hold=grant.max_hold if grant.max_hold is not None else self._config.max_hold,
            queue=wish.queue,
            interval=functools.partial(interval_of, hidden=wish.hidden),
            quota=Quota(leases=self._config.max_held, places=self._config.max_waiting),
            again=wish.again,
        )
        if isinstance(found, Full):
            raise ScriptRefused(429, reason="quota")
        return found

    def _grant(self, text: str) -> LockGrant:
        """The grant. LockGrantError also if the request comes from another origin than the grant is for."""
        grant = read_grant(text, self._visitor.signer)
        origin = self._request.headers.get("Origin")
        if origin is None:  # no script in a browser: those send it with every POST
            return grant
        own = is_sent_by_this_site(self._request) if grant.audience is None else origin.lower() == grant.audience
        if not own:
            raise LockGrantError("audience", grant.signer)
        return grant

    def _no_grant(self, error: LockGrantError) -> ScriptRefused:
        if error.signer.startswith("user:") and not self._visitor.logged_in:
            return ScriptRefused(401, reason="logged_out")
        return ScriptRefused(403, reason="grant", detail=error.reason)

    def _ttl(self, grant: LockGrant, wanted: float | None) -> float:
        """A client may choose a shorter one."""
        granted = grant.ttl if grant.ttl is not None else self._config.ttl
        return granted if wanted is None else min(granted, max(wanted, SHORTEST_TTL))

    def _permitted(self, name: str) -> bool:
        if self._config.permission is None:
            return True
        try:
            return bool(self._config.permission(self._request, name))
        except (PermissionDenied, Http404, ObjectDoesNotExist):  # gone, perhaps; the rest of a batch goes on
            return False

    # renew

    def renew(self, batch: list[LeaseRenewal]) -> list[Facts]:
        """Renew leases, those of one TTL together. The answers are in the order of ``batch``.

        The name comes from the grant: with that of another name a lease is not found.
        """
        lost: dict[str, str] = {}
        seen: Counter[str] = Counter()
        groups: dict[tuple[float, int], list[tuple[str, str, int]]] = {}
        for item in batch:
            grant = self._still_granted(item, lost)
            if grant is None:
                continue
            seen[grant.name] += 1  # two leases of one name, of which one is lost, must not be in one statement
            group = groups.setdefault((self._ttl(grant, item.ttl), seen[grant.name]), [])
            group.append((grant.name, item.lease, item.fence))
        found: dict[str, BrowserLease | LeaseLost] = {}
        for (ttl, _), leases in groups.items():
            found |= store.renew(self._alias, leases, principal=self._principal, ttl=ttl)
        return [self._renewed(item.lease, lost, found) for item in batch]

    def _still_granted(self, item: LeaseRenewal, lost: dict[str, str]) -> LockGrant | None:
        """The grant of a lease. Else the lease ends at once, and ``lost`` gets the reason."""
        principal = self._principal
        try:
            grant = self._grant(item.grant)
            if self._permitted(grant.name):
                return grant
            lost[item.lease] = "permission"
        except LockGrantError as error:
            lost[item.lease] = "grant"
            if error.signer not in ("", self._visitor.signer):  # the user that had it is logged out
                lost[item.lease] = "logged_out"
                principal = stored(error.signer)
        store.release(self._alias, item.lease, principal=principal)
        return None

    def _renewed(self, lease: str, lost: dict[str, str], found: Mapping[str, BrowserLease | LeaseLost]) -> Facts:
        row = found.get(lease)
        if lease in lost or row is None:
            return {"id": lease, "lost": lost.get(lease, "expired")}
        if isinstance(row, LeaseLost):
            return {"id": lease, "lost": row.reason}
        return {"id": lease, "expires_in": row.expires_in}

    # release, list

    def release(self, lease: str) -> None:
        """Give a lease or a place back; nothing happens if it is none of the sender's."""
        if ID.fullmatch(lease):
            store.release(self._alias, lease, principal=self._principal)

    def listed(self) -> list[Facts]:
        """The sender's leases, also those of other tabs and devices."""
        return [listed(row) for row in store.held_by(self._alias, self._principal)]


def listed(row: BrowserLease) -> Facts:
    """A lease as its holder may see it."""
    return {"id": row.lease, "name": row.name, "fence": row.fence, "age": row.age, "expires_in": row.expires_in}


def refusal_of(found: Waiting) -> Facts:
    """The facts of a 409. Whoever found the row busy, and not the lock, asks again soon."""
    holder = found.holder.label if found.holder is not None else None
    retry_after = min(found.interval, HEAD) if found.crowded else found.interval
    return {"holder": holder, "place": found.place, "retry_after": retry_after}
