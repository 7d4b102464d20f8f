"""SASL with DIGEST-MD5, against a server that requires it."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from kazoo.security import ACL, Id

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.zookeeper.backend import ZooKeeperBackend
from django_distlock.manager.registry import registry
from tests.engines.own_servers import SaslZooKeeper, needs_programs, running
from tests.engines.zookeeper.server import USING, path_of, use
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")

BOB = {"mechanism": "DIGEST-MD5", "username": "bob", "password": SaslZooKeeper.accounts["bob"]}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(SaslZooKeeper, "zookeeper") as port:
        yield port


@pytest.fixture
def server(port: int, settings: Any) -> Iterator[Any]:
    """``server(**options)``: from here on the alias is on that server."""

    def take(**options: Any) -> None:
        registry.close()
        use(settings, hosts=f"127.0.0.1:{port}", **options)

    yield take
    registry.close()


def acls_of(name: str) -> set[tuple[str, str, int]]:
    """Who may do what with the node of a lock."""
    backend: Any = registry.entry(USING).backend
    kazoo = backend._session.kazoo
    (node,) = kazoo.get_children(path_of(name))
    acls, _ = kazoo.get_acls(f"{path_of(name)}/{node}")
    return {(each.id.scheme, each.id.id, each.perms) for each in acls}


@needs_programs
def test_the_lock_belongs_to_the_one_who_logged_in(server: Any, name: str) -> None:
    server(sasl_options=BOB)
    with advisory_lock(name, using=USING) as lease:
        assert lease.held
        assert acls_of(name) == {("sasl", "bob", 31)}


@needs_programs
def test_an_acl_may_name_accounts(server: Any, name: str) -> None:
    server(sasl_options=BOB, acl=[ACL(31, Id("sasl", "bob")), ACL(1, Id("sasl", "ops"))], path="/shown")
    with advisory_lock(name, using=USING):
        backend: Any = registry.entry(USING).backend
        acls, _ = backend._session.kazoo.get_acls("/shown")
        assert {(each.id.id, each.perms) for each in acls} == {("bob", 31), ("ops", 1)}


@needs_programs
@pytest.mark.parametrize("options", [{"sasl_options": {**BOB, "password": "wrong"}}, {}], ids=["wrong", "none"])
def test_r6_without_the_password_it_is_said_at_once(
    server: Any, name: str, options: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """And no thread says so on stderr."""
    server(**options)
    began = time.monotonic()
    with pytest.raises(BackendUnavailable, match=r"Sasl|AuthFailed"):
        advisory_lock(name, using=USING).acquire(timeout=10)
    within(time.monotonic() - began, 2)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({}, "a dict with the mechanism"),
        ("DIGEST-MD5", "a dict with the mechanism"),
        ({"mechanism": "DIGEST-MD5", "username": "bob"}, "username and password"),
        ({"mechanism": "DIGEST-MD5", "username": "bob", "password": 5}, "username and password"),
        ({"mechanism": "SECRET", "username": "bob", "password": "secret"}, "Unknown mechanism"),
        ({"mechanism": "GSSAPI"}, "kerberos module not installed"),
    ],
)
def test_wrong_options_are_named_before_a_thread_meets_them(options: Any, cure: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=cure) as error:
        ZooKeeperBackend("zk", {"hosts": "localhost", "sasl_options": options})
    assert "sasl_options" in str(error.value)
    assert "secret" not in str(error.value)


def test_the_old_way_of_kazoo_is_refused_with_the_new_one() -> None:
    with pytest.raises(ImproperlyConfigured, match="sasl_options"):
        ZooKeeperBackend("zk", {"hosts": "localhost", "auth_data": [("sasl", "bob:secret")]})


def test_without_pure_sasl_the_extra_is_named() -> None:
    code = f"""
import sys
sys.modules["puresasl"] = None  # as if it were not installed
from django.core.exceptions import ImproperlyConfigured
from django_distlock.backends.zookeeper import ZooKeeperBackend
ZooKeeperBackend("zk", {{"hosts": "localhost"}})
try:
    ZooKeeperBackend("zk", {{"hosts": "localhost", "sasl_options": {BOB!r}}})
except ImproperlyConfigured as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert 'pip install "django-distlock[zookeeper-sasl]"' in done.stdout, done.stderr
