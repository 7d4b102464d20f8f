"""Faults of the features above the locks: rows, tables, fenced writes, idempotency keys, edit locks, the admin."""

from __future__ import annotations

from .mutant import Mutant

FEATURES = (
    Mutant(
        "row locks: rows are locked in the caller's order",
        "R9",
        "data/rows/fetch.py",
        '        locked = locked.order_by("pk")\n',
        "",
        (
            "tests/data/rows/test_waiting.py",
            "tests/data/rows/test_lock.py",
        ),
        only="order",
    ),
    Mutant(
        "fenced writes: the token is no condition of the update",
        "R21",
        "data/fencing/querysets.py",
        'due = rows.filter(**{f"{FENCE}__lte": number})',
        "due = rows.all()",
        ("tests/data/fencing/test_update.py",),
    ),
    Mutant(
        "idempotency: the principal is left out of the scope",
        "idempotency",
        "idempotency/decisions.py",
        'return keyed(site_key, "scope", tenant, principal, method, route, key)',
        'return keyed(site_key, "scope", tenant, method, route, key)',
        (
            "tests/idempotency/test_security.py",
            "tests/idempotency/test_engine.py",
        ),
    ),
    Mutant(
        "idempotency: other data with the same key get the stored answer",
        "idempotency",
        "idempotency/decisions.py",
        "    if not hmac.compare_digest(record.fingerprint, fingerprint):",
        "    if False:",
        (
            "tests/idempotency/test_outcomes.py",
            "tests/idempotency/test_engine.py",
        ),
    ),
    Mutant(
        "idempotency: a request that still runs is run again",
        "idempotency",
        "idempotency/decisions.py",
        "return Decision.CRASHED if record.expired else Decision.IN_FLIGHT",
        "return Decision.CRASHED",
        (
            "tests/idempotency/test_races.py",
            "tests/idempotency/test_engine.py",
        ),
    ),
    Mutant(
        "edit locks: the version is not compared",
        "edit locks",
        "editing/saving.py",
        "    if grant.version is not None and version_of(save.object",
        "    if False and version_of(save.object",
        ("tests/editing/store/test_saving.py",),
    ),
    Mutant(
        "edit locks: a save does not look who holds the lock",
        "edit locks",
        "editing/saving.py",
        "(conflict := _held(save) or _changed(save))",
        "(conflict := _changed(save))",
        ("tests/editing/store/test_saving.py",),
    ),
    Mutant(
        "edit locks: a lease id that was stolen is good for another person",
        "edit locks",
        "leases/rows.py",
        "MINE = \"(lease = %(lease)s AND lease <> '' AND (%(principal)s = '' OR principal = %(principal)s))\"",
        "MINE = \"(lease = %(lease)s AND lease <> '' AND (%(principal)s = '' OR principal <> ''))\"",
        ("tests/leases/test_objects.py",),
    ),
    Mutant(
        "edit locks: a beat claims another object than that of its page",
        "edit locks",
        "editing/http/beats.py",
        "        if resource_of(obj) != grant.resource:",
        "        if False:",
        ("tests/editing/http/test_security.py",),
    ),
    Mutant(
        "a break ends the session that was shown although it has given the lock back",
        "operations",
        "backends/postgres/introspection.py",
        "AND granted AND {NUMBER}::text = %s AND pid::text = %s",
        "AND granted AND {NUMBER}::text <> coalesce(%s, '') AND pid::text = %s",
        ("tests/operations/admin/test_breaking.py",),
    ),
    Mutant(
        "browser locks: a stream forgets a lease that was lost, and tells no further turn of it",
        "browser locks",
        "browser/events.py",
        "self._held.discard(lease)  # its tab may ask for it again, and then waits with the same id",
        "self.names = {each: name for each, name in self.names.items() if each != lease}",
        ("tests/browserlocks/http/test_events.py",),
    ),
    Mutant(
        "the edit lock of one tenant is that of another",
        "tenants",
        "leases/records.py",
        'schema = f"{self.schema}\\0" if self.schema else ""',
        'schema = ""',
        ("tests/tenants/test_tenants.py",),
    ),
    Mutant(
        "migrate: the site key is replaced",
        "R3",
        "migrations/0001_initial.py",
        "keys.bulk_create([keys.model(id=1, site_key=key)], ignore_conflicts=True)",
        'keys.update_or_create(id=1, defaults={"site_key": key})',
        ("tests/unit/test_site_key.py",),
        only="migrate",
    ),
)
