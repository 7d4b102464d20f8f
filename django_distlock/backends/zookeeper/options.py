"""OPTIONS of the ZooKeeper backend, checked and in the form that kazoo takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from kazoo.hosts import collect_hosts
from kazoo.protocol.paths import normpath
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Permissions

from django_distlock.validation import seconds

try:
    from puresasl import SASLError
    from puresasl.client import SASLClient
except ImportError:  # only SASL needs it
    SASLClient = None

DEFAULT_PATH = "/distlock"
DEFAULT_SESSION_TIMEOUT = 10.0
# Passed on to kazoo: https://kazoo.readthedocs.io/en/latest/api/client.html
FOR_KAZOO = frozenset({"use_ssl", "ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname"})
HOSTS = (
    'a str like "zk1:2181,zk2:2181", or a list of such, with an absolute path after the last one if there is a chroot'
)
NAMES = frozenset({"hosts", "path", "session_timeout", "auth_data", "acl", "sasl_options"}) | FOR_KAZOO


class Settings:
    """Checked OPTIONS: ``kazoo`` for the client, ``path`` of the locks without a slash at its end, ``acl`` of nodes."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        self._where = f"DISTLOCK[{alias!r}]: OPTIONS"
        self.path = self._path(options.get("path", DEFAULT_PATH))
        auth = self._auth(options.get("auth_data"))
        sasl = self._sasl(options.get("sasl_options"))
        self.acl = self._acl(options.get("acl"), bool(auth or sasl))
        # may anybody write to the nodes?
        self.writable = any(each.perms & Permissions.WRITE for each in self.acl)
        self.kazoo: dict[str, Any] = {
            "hosts": self._hosts(options.get("hosts")),
            "timeout": self._timeout(options.get("session_timeout", DEFAULT_SESSION_TIMEOUT)),
            "auth_data": auth,
            "sasl_options": sasl,
            **{name: options[name] for name in FOR_KAZOO if name in options},
        }

    def _wrong(self, option: str, must: str) -> ImproperlyConfigured:
        # without the value: it may be a password
        return ImproperlyConfigured(f"{self._where}[{option!r}] must be {must}.")

    def _hosts(self, hosts: Any) -> str:
        if isinstance(hosts, (list, tuple)) and all(isinstance(host, str) for host in hosts):
            hosts = ",".join(hosts)
        if not isinstance(hosts, str) or not hosts.strip(" ,"):
            raise self._wrong("hosts", HOSTS)
        try:
            each, chroot = collect_hosts(hosts)
            for host, _port in each:
                host.encode("idna")  # as getaddrinfo() does, in kazoo's thread
            if chroot is not None:
                normpath(chroot).encode()
        except ValueError:
            raise self._wrong("hosts", HOSTS) from None
        return hosts

    def _path(self, path: Any) -> str:
        parts = path.rstrip("/").split("/")[1:] if isinstance(path, str) and path.startswith("/") else []
        if not parts or not all(part.isascii() and part.isprintable() and part.strip(".") for part in parts):
            raise self._wrong("path", 'an absolute path of printable ASCII like "/distlock"')
        return "/" + "/".join(parts)

    def _timeout(self, value: Any) -> float:
        try:
            return seconds("session_timeout", value, positive=True) or DEFAULT_SESSION_TIMEOUT
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"{self._where}: {error}") from error

    def _auth(self, value: Any) -> list[tuple[str, str]]:
        if value is None:
            return []
        if not isinstance(value, (list, tuple, set)) or not all(
            isinstance(each, (list, tuple)) and len(each) == 2 and all(isinstance(part, str) for part in each)
            for each in value
        ):
            raise self._wrong("auth_data", 'a list of pairs (scheme, credential) like ("digest", "user:password")')
        if any(scheme == "sasl" for scheme, _ in value):
            raise self._wrong("auth_data", "without the scheme sasl: put the account into sasl_options")
        return [(scheme, credential) for scheme, credential in value]

    def _sasl(self, value: Any) -> dict[str, Any] | None:
        """Refuse here what would end kazoo's thread with a traceback."""
        if value is None:
            return None
        if not isinstance(value, Mapping) or not isinstance(value.get("mechanism"), str):
            raise self._wrong("sasl_options", 'a dict with the mechanism, like {"mechanism": "DIGEST-MD5", ...}')
        if SASLClient is None:
            install = 'pip install "django-distlock[zookeeper-sasl]"'
            raise ImproperlyConfigured(f"{self._where}['sasl_options'] needs pure-sasl: {install}")
        account = [value.get(part) for part in ("username", "password")]
        if value["mechanism"] == "DIGEST-MD5" and not all(isinstance(part, str) for part in account):
            raise self._wrong("sasl_options", "a dict with username and password, for the mechanism DIGEST-MD5")
        try:
            SASLClient("zookeeper", mechanism=value["mechanism"])
        except SASLError as error:
            raise ImproperlyConfigured(f"{self._where}['sasl_options']: {error}") from error
        return dict(value)  # kazoo adds to it

    def _acl(self, value: Any, authenticated: bool) -> list[ACL]:
        if value is None:
            return list(CREATOR_ALL_ACL if authenticated else OPEN_ACL_UNSAFE)
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(each, ACL) for each in value):
            raise self._wrong("acl", "a list of kazoo.security.ACL")
        return list(value)
