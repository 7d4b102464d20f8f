"""ZooKeeper by TLS, through a proxy that speaks it, and SASL with DIGEST-MD5, against a server that requires it."""

from __future__ import annotations

import gc
import socket
import socketserver
import ssl
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from kazoo.security import ACL, Id

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.zookeeper import options as zookeeper_options
from django_distlock.backends.zookeeper.backend import ZooKeeperBackend
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.own_servers import SaslZooKeeper, needs_programs, running
from tests.engines.zookeeper.server import USING, address, path_of, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    " -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout key.pem -out certificate.pem"
)


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            socket.socket.shutdown(end, socket.SHUT_RDWR)


@pytest.fixture
def tls(settings: Any, tmp_path: Path) -> Iterator[str]:
    """From here on the alias goes through a proxy, by TLS. The file of the authority that signed its certificate."""
    subprocess.run(CERTIFICATE.split(), cwd=tmp_path, check=True, capture_output=True, timeout=60)
    authority = str(tmp_path / "certificate.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, tmp_path / "key.pem")

    class Decrypting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as decrypted,
                socket.create_connection(address()) as server,
            ):
                back = threading.Thread(target=pump, args=(server, decrypted))
                back.start()
                pump(decrypted, server)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Decrypting) as proxy:
        accepting = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        accepting.start()
        use(settings, hosts=f"127.0.0.1:{proxy.server_address[1]}", use_ssl=True)
        yield authority
        registry.close()
        proxy.shutdown()
        accepting.join()


@pytest.mark.parametrize("options", [{"check_hostname": True}, {"verify_certs": False}], ids=["verified", "not"])
def test_locks_by_tls(name: str, settings: Any, tls: str, options: Any) -> None:
    """Also with answers that come together: one read of the socket decrypts several."""
    use(settings, ca=tls, **options)
    backend = registry.entry(USING).backend
    leases = [advisory_lock(f"{name}{number}", using=USING).acquire() for number in range(20)]
    assert {info.name for info in backend.inspect()} >= {lease.name for lease in leases}
    for lease in leases:
        lease.release()


def refused(reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    """And no thread says so on stderr."""
    with pytest.raises(BackendUnavailable, match=reason):
        advisory_lock("refused", using=USING).acquire(timeout=20)
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo leaves the socket to Python
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "certificate verify failed"),
        ({"ca": "/nowhere"}, "No such file"),
        ({"verify_certs": False, "check_hostname": True}, "check_hostname"),
    ],
)
def test_r6_what_tls_refuses_is_said(settings: Any, tls: str, options: Any, reason: str, capfd: Any) -> None:
    use(settings, **options)
    gc.disable()
    try:
        refused(reason, capfd)
        registry.close()
        eventually(lambda: not clients(), "every refused connection is closed, without the garbage collector")
    finally:
        gc.enable()


def clients() -> list[ssl.SSLSocket]:
    # isinstance() would evaluate the lazy objects of Django
    sockets = [each for each in gc.get_objects() if type(each) is ssl.SSLSocket]
    return [each for each in sockets if not each.server_side and each.fileno() != -1]


BOB = {"mechanism": "DIGEST-MD5", "username": "bob", "password": SaslZooKeeper.accounts["bob"]}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(SaslZooKeeper, "zookeeper") as port:
        yield port


@pytest.fixture
def sasl(port: int, settings: Any) -> Iterator[Callable[..., None]]:
    """``sasl(**options)``: from here on the alias is on that server."""

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
def test_the_lock_belongs_to_the_one_who_logged_in_or_to_the_accounts_of_an_acl(sasl: Any, name: str) -> None:
    sasl(sasl_options=BOB)
    with advisory_lock(name, using=USING):
        assert acls_of(name) == {("sasl", "bob", 31)}
    sasl(sasl_options=BOB, acl=[ACL(31, Id("sasl", "bob")), ACL(1, Id("sasl", "ops"))], path="/shown")
    with advisory_lock(name, using=USING):
        assert acls_of(name) == {("sasl", "bob", 31), ("sasl", "ops", 1)}


@needs_programs
@pytest.mark.parametrize("options", [{"sasl_options": {**BOB, "password": "wrong"}}, {}], ids=["wrong", "none"])
def test_r6_without_the_password_it_is_said(sasl: Any, options: Any, capfd: Any) -> None:
    sasl(**options)
    refused("Sasl|AuthFailed", capfd)


def test_the_package_for_sasl_is_named(monkeypatch: Any) -> None:
    monkeypatch.setattr(zookeeper_options, "find_spec", lambda name: None)  # as if it were not installed
    with pytest.raises(ImproperlyConfigured, match=r'pip install "django-distlock\[zookeeper-sasl\]"') as error:
        ZooKeeperBackend("zk", {"hosts": "localhost", "sasl_options": BOB})
    assert BOB["password"] not in str(error.value)
