"""OPTIONS of the ZooKeeper backend, in the form that kazoo takes.

Checked is what would otherwise be taken for something else; the rest kazoo, pure-sasl and the server refuse themselves,
and their words reach the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from kazoo.hosts import collect_hosts
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from django_distlock.validation import seconds

DEFAULT_PATH = "/distlock"
DEFAULT_SESSION_TIMEOUT = 10.0
# Passed on to kazoo: https://kazoo.readthedocs.io/en/latest/api/client.html
FOR_KAZOO = frozenset({"use_ssl", "ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname"})
NAMES = frozenset({"hosts", "path", "session_timeout", "auth_data", "acl", "sasl_options"}) | FOR_KAZOO


class Settings:
    """Checked OPTIONS: ``kazoo`` for the client, ``path`` of the locks without a slash at its end, ``acl`` of nodes."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        self._where = f"DISTLOCK[{alias!r}]: OPTIONS"
        self.path = self._path(options.get("path", DEFAULT_PATH))
        auth = self._auth(options.get("auth_data"))
        sasl = self._sasl(options.get("sasl_options"))
        self.acl = self._acl(options.get("acl"), bool(auth or sasl))
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
        try:
            collect_hosts(hosts)
        except (AttributeError, ValueError):
            form = 'a str like "zk1:2181,zk2:2181", or a list of such, with the path of a chroot after the last one'
            raise self._wrong("hosts", form) from None
        return str(hosts)

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
        pairs = [] if value is None else value
        if not isinstance(pairs, (list, tuple)) or not all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
            for pair in pairs
        ):
            raise self._wrong("auth_data", 'a list of pairs (scheme, credential) like ("digest", "user:password")')
        if any(scheme == "sasl" for scheme, _ in pairs):
            raise self._wrong("auth_data", "without the scheme sasl: put the account into sasl_options")
        return [(scheme, credential) for scheme, credential in pairs]

    def _sasl(self, value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping) or not isinstance(value.get("mechanism"), str):
            raise self._wrong("sasl_options", 'a dict with the mechanism, like {"mechanism": "DIGEST-MD5", ...}')
        if find_spec("puresasl") is None:
            install = 'pip install "django-distlock[zookeeper-sasl]"'
            raise ImproperlyConfigured(f"{self._where}['sasl_options'] needs pure-sasl: {install}")
        return dict(value)  # kazoo adds to it

    def _acl(self, value: Any, authenticated: bool) -> list[ACL]:
        if value is None:
            return list(CREATOR_ALL_ACL if authenticated else OPEN_ACL_UNSAFE)
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(each, ACL) for each in value):
            raise self._wrong("acl", "a list of kazoo.security.ACL")
        return list(value)
