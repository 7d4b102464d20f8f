"""ZooKeeper by TLS, through a proxy that speaks it, and SASL with DIGEST-MD5, against a server that requires it."""

from __future__ import annotations

import datetime
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.core.exceptions import ImproperlyConfigured
from kazoo.security import ACL, Id

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.zookeeper.backend import ZooKeeperBackend
from django_distlock.manager.registry import registry
from tests.engines.own_servers import SaslZooKeeper, needs_programs, running
from tests.engines.zookeeper.server import USING, address, path_of, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("databases")


def certificate(folder: Path) -> tuple[str, str]:
    """The files of a certificate for localhost, signed by itself, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "certificate.pem"), str(folder / "key.pem")


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            socket.socket.shutdown(end, socket.SHUT_RDWR)


def serve(client: socket.socket, context: ssl.SSLContext) -> None:
    with (
        suppress(OSError),
        context.wrap_socket(client, server_side=True) as decrypted,
        socket.create_connection(address()) as server,
    ):
        for end in (decrypted, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=pump, args=(server, decrypted))
        back.start()
        pump(decrypted, server)
        back.join()


@pytest.fixture
def tls(settings: Any, tmp_path: Path) -> Iterator[str]:
    """From here on the alias goes through the proxy, by TLS. The file of the authority that signed its certificate."""
    signed, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed, key)
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=(listening.accept()[0], context)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        use(settings, hosts=f"127.0.0.1:{listening.getsockname()[1]}", use_ssl=True)
        yield signed
        registry.close()
        listening.shutdown(socket.SHUT_RDWR)
        acceptor.join()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("options", [{"check_hostname": True}, {"verify_certs": False}], ids=["verified", "not"])
def test_locks_by_tls(name: str, settings: Any, tls: str, options: Any) -> None:
    """Also with answers that come together: one read of the socket decrypts several."""
    use(settings, ca=tls, **options)
    backend = registry.entry(USING).backend
    leases = [advisory_lock(f"{name}{number}", using=USING).acquire() for number in range(20)]
    assert {info.name for info in backend.inspect()} >= {lease.name for lease in leases}
    for lease in leases:
        lease.release()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "certificate verify failed"),
        ({"ca": "/nowhere"}, "No such file"),
        ({"verify_certs": False, "check_hostname": True}, "check_hostname"),
    ],
)
def test_r6_what_tls_refuses_is_said(
    name: str, settings: Any, tls: str, options: Any, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """And no thread says so on stderr."""
    use(settings, **options)
    with pytest.raises(BackendUnavailable, match=reason):
        advisory_lock(name, using=USING).acquire(timeout=20)
    assert capfd.readouterr().err == ""


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
def test_the_lock_belongs_to_the_one_who_logged_in_or_to_the_accounts_of_an_acl(server: Any, name: str) -> None:
    server(sasl_options=BOB)
    with advisory_lock(name, using=USING):
        assert acls_of(name) == {("sasl", "bob", 31)}
    server(sasl_options=BOB, acl=[ACL(31, Id("sasl", "bob")), ACL(1, Id("sasl", "ops"))], path="/shown")
    with advisory_lock(name, using=USING):
        assert acls_of(name) == {("sasl", "bob", 31), ("sasl", "ops", 1)}


@needs_programs
@pytest.mark.parametrize("options", [{"sasl_options": {**BOB, "password": "wrong"}}, {}], ids=["wrong", "none"])
def test_r6_without_the_password_it_is_said(
    server: Any, name: str, options: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """And no thread says so on stderr."""
    server(**options)
    with pytest.raises(BackendUnavailable, match=r"Sasl|AuthFailed"):
        advisory_lock(name, using=USING).acquire(timeout=20)
    assert capfd.readouterr().err == ""


def test_wrong_options_are_named_before_a_thread_meets_them() -> None:
    for options, cure in (
        ({}, "a dict with the mechanism"),
        ("DIGEST-MD5", "a dict with the mechanism"),
        ({"mechanism": "DIGEST-MD5", "username": "bob"}, "username and password"),
        ({"mechanism": "DIGEST-MD5", "username": "bob", "password": 5}, "username and password"),
        ({"mechanism": "SECRET", "username": "bob", "password": "secret"}, "Unknown mechanism"),
        ({"mechanism": "GSSAPI"}, "kerberos module not installed"),
    ):
        with pytest.raises(ImproperlyConfigured, match=cure) as error:
            ZooKeeperBackend("zk", {"hosts": "localhost", "sasl_options": options})
        assert "sasl_options" in str(error.value)
        assert "secret" not in str(error.value)
    with pytest.raises(ImproperlyConfigured, match="sasl_options"):  # kazoo's old way
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
