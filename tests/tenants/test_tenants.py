"""Work of other threads is done in the schema of the request or command that it is for."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from django.http import HttpResponse, JsonResponse
from django.test import Client
from django.urls import path

from django_distlock import LockLost
from django_distlock.editing import edit_lock, editors
from django_distlock.editing.listing import edit_leases
from django_distlock.editing.resources import resource_of
from django_distlock.idempotency import idempotent
from django_distlock.leases import upkeep
from testproject.scenes.models import Account
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

# A lease of 1.5 seconds must be renewed.
pytestmark = [pytest.mark.tier2, pytest.mark.usefixtures("databases")]
ENGINE = os.environ.get("DISTLOCK_TENANTS_ENGINE", "tests.tenants.postgres")
PATIENCE = 30
TENANTS = ("tenant_a", "tenant_b")
began, go_on = threading.Event(), threading.Event()
runs: list[str] = []


@pytest.fixture
def schemas() -> Iterator[None]:
    with connections["postgres"].cursor() as cursor:
        for tenant in TENANTS:
            cursor.execute(f"DROP SCHEMA IF EXISTS {tenant} CASCADE; CREATE SCHEMA {tenant}")
        yield
        cursor.execute(f"DROP SCHEMA {', '.join(TENANTS)} CASCADE")


def migrated(tenants: tuple[str, ...] = TENANTS) -> None:
    """In a child: the default database has the tables of the app in these schemas, besides the public one."""
    connections["default"].close()
    connections.settings["default"] = {**connections.settings["postgres"], "ENGINE": ENGINE}
    del connections["default"]
    for tenant in tenants:
        connection.set_schema(tenant, include_public=False)  # type: ignore[attr-defined]
        call_command("migrate", "django_distlock", verbosity=0)
    connection.set_schema("public")  # type: ignore[attr-defined]


def pay(request: Any) -> HttpResponse:
    runs.append(request.headers["X-Tenant"])
    if len(runs) == 1:
        began.set()
        assert go_on.wait(PATIENCE)
    return JsonResponse({"run": len(runs)}, status=201)


def tenant_middleware(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        connection.set_schema(request.headers["X-Tenant"])  # type: ignore[attr-defined]
        return get_response(request)

    return middleware


def key_of_tenant(key: str, key_prefix: str, version: int) -> str:
    """As ``django_tenants.cache.make_key``."""
    return f"{connection.schema_name}:{key_prefix}:{version}:{key}"  # type: ignore[attr-defined]


def post(tenant: str) -> int:
    who = {"Idempotency-Key": "k" * 20, "Authorization": "Bearer a", "Host": f"{tenant[-1]}.example"}
    try:
        return Client(headers={"X-Tenant": tenant, **who}).post("/pay/", {"amount": "5"}).status_code
    finally:
        connections.close_all()


def twice(link: Any, storage: str) -> None:
    """In a child: repeat a request while its first copy runs, for longer than the TTL of a claim."""
    migrated()
    global urlpatterns
    urlpatterns = [path("pay/", idempotent(on_crash="retry", claim_ttl=1.5)(pay))]
    settings.ROOT_URLCONF = __name__
    settings.ALLOWED_HOSTS = [".example"]
    ours = "django_distlock.idempotency.middleware.IdempotencyMiddleware"
    settings.MIDDLEWARE = [f"{__name__}.tenant_middleware", ours]
    backend = "django.core.cache.backends.locmem.LocMemCache"
    settings.CACHES = {"default": {"BACKEND": backend, "KEY_FUNCTION": f"{__name__}.key_of_tenant"}}
    settings.DISTLOCK_IDEMPOTENCY = {"STORAGE": storage, "REPLAY_TO_CREDENTIALS": True}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, TENANTS[0])
        assert began.wait(10), first.result(PATIENCE)
        threading.Event().wait(2.5)  # without a renewal the claim would have ended
        again, elsewhere = post(TENANTS[0]), post(TENANTS[1])
        go_on.set()
        link.say([first.result(PATIENCE), again, elsewhere])
    link.say(runs)


@pytest.mark.parametrize("storage", ["database", "cache"])
def test_a_claim_is_renewed_in_the_schema_of_its_request(schemas: None, storage: str) -> None:
    """Else the view would run a second time beside the first."""
    with Child(twice, storage) as child:
        assert child.hear() == [201, 409, 201]
        assert child.hear() == list(TENANTS)


def edit(link: Any, shared: bool) -> None:
    """In a child: hold the edit lock of one object in a tenant, for longer than its TTL."""
    account = Account(pk=7)
    account._state.adding = False

    def shown(tenant: str) -> list[int]:
        """How many editors of the account each function of this tenant shows."""
        connection.set_schema(tenant)  # type: ignore[attr-defined]
        return [
            len(editors([account])),
            len(edit_leases.held("default", ["scenes.account"])),
            len(edit_leases.all_held(limit=1)),
        ]

    migrated(() if shared else TENANTS)
    one, other = TENANTS
    connection.set_schema(one)  # type: ignore[attr-defined]
    with edit_lock(account, by="an import", ttl=1.5) as hold:
        threading.Event().wait(2.5)
        link.say([hold.held, shown(one), shown(other)])
        with pytest.raises(LockLost), edit_lock(account, by="another import"):
            link.say([shown(other), upkeep.break_lease(resource_of(account)) is not None])
        link.say([hold.held, shown(one)])


@pytest.mark.parametrize("shared", [True, False], ids=["in the public schema", "in the schema of the tenant"])
def test_edit_locks_are_those_of_the_tenant(schemas: None, shared: bool) -> None:
    """Wherever the table is, they are renewed there, and object 7 of one tenant is not that of another."""
    seen, nothing = [1, 1, 1], [0, 0, 0]
    with Child(edit, shared) as child:
        assert child.hear() == [True, seen, nothing]
        assert child.hear() == [seen, True]
        assert child.hear() == [True, seen]
