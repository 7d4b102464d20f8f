"""TLS, through a proxy that speaks it in front of the server of the tests."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.concurrency.clock import monotonic
from django_distlock.manager.registry import registry
from tests.engines.zookeeper.server import USING, address, clerk, nodes, use
from tests.support.timing import within

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
    leases = [advisory_lock(f"{name}{number}", using=USING).acquire() for number in range(50)]
    with clerk() as server:
        assert all(nodes(server, lease.name) for lease in leases)
    names = {lease.name for lease in leases}
    assert {info.name for info in backend.inspect()} >= names
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
def test_r6_what_tls_refuses_is_said_at_once(
    name: str, settings: Any, tls: str, options: Any, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """And no thread says so on stderr."""
    use(settings, **options)
    began = monotonic()
    with pytest.raises(BackendUnavailable, match=reason):
        advisory_lock(name, using=USING).acquire(timeout=10)
    within(monotonic() - began, 2)
    assert capfd.readouterr().err == ""
