"""From the name of a lock to the key that an engine gets.

Engines treat names differently: MySQL folds case, MariaDB cuts at a NUL byte, PostgreSQL takes 64 bits, ZooKeeper's
client fails on a lone surrogate. So engines get a keyed hash of the exact code points: two names with different code
points have different keys. The site key keeps two sites on one server apart.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import inspect
import re
from functools import cached_property

MAX_NAME_LENGTH = 512
MAX_TEXT_LENGTH = 60
_PERSON, _SALT = b"django-distlock", b"namespace"
_NOT_SLUG = re.compile(r"[^a-z0-9]+")


class LockKey:
    """One lock of one site: ``alias`` and ``name`` as in the code, and the forms that engines take.

    ``full_name`` is what lists show: the name behind its namespace. Equal keys have equal ``digest`` (32 bytes).
    """

    def __init__(self, alias: str, name: str, digest: bytes, namespace: str = "") -> None:
        self.alias = alias
        self.name = name
        self.digest = digest
        self.namespace = namespace
        self.full_name = full_name(namespace, name)

    def __repr__(self) -> str:
        return f"LockKey({self.alias!r}, {self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LockKey) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def number(self) -> int:
        """A signed 64-bit integer, for PostgreSQL's advisory locks."""
        return int.from_bytes(self.digest[:8], "big", signed=True)

    @cached_property
    def text(self) -> str:
        """At most 60 lower-case ASCII characters: a readable slug, a hyphen, 160 bits of the hash in base32.

        MySQL compares names without case, so base64 would lose bits.
        """
        tail = base64.b32encode(self.digest[:20]).decode("ascii").lower()
        slug = _NOT_SLUG.sub("-", self.full_name.lower()).strip("-")[: MAX_TEXT_LENGTH - len(tail) - 1].rstrip("-")
        return f"{slug}-{tail}" if slug else tail

    @cached_property
    def text_bytes(self) -> bytes:
        """:attr:`text`, as bytes."""
        return self.text.encode("ascii")

    @cached_property
    def number_bytes(self) -> bytes:
        """:attr:`number` in decimal, as bytes."""
        return b"%d" % self.number

    @cached_property
    def path(self) -> str:
        """One path component of 64 hexadecimal digits."""
        return self.digest.hex()


def validate_name(name: object) -> str:
    """Return ``name`` if it can name a lock.

    Raises TypeError if it is not a ``str`` (a lazy translation is not: convert it) and ValueError if it is empty or
    longer than 512 characters.
    """
    if not isinstance(name, str):
        forgotten = ': a decorator has a name, as in @advisory_lock("name")' if inspect.isfunction(name) else ""
        raise TypeError(f"name must be a str, not {type(name).__name__}{forgotten}.")
    if not name:
        raise ValueError("name must not be empty.")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"name must have at most {MAX_NAME_LENGTH} characters, not {len(name)}.")
    return name


def full_name(namespace: str, name: str) -> str:
    """The name of a lock as lists show it: two namespaces may have locks of the same name."""
    return f"{namespace}:{name}" if namespace else name


def derive_key(site_key: str, alias: str, name: str, *parts: str, namespace: str = "") -> LockKey:
    """Hash (alias, name, parts) with the site key: keyed BLAKE2b (RFC 7693) over length-prefixed parts.

    The lengths keep ("a", "b:c") and ("a:b", "c") apart; ``surrogatepass`` keeps every ``str`` hashable. A namespace is
    one more part before the name, and a salt tells it from a name with one part more.
    """
    state = _keyed(site_key, alias, namespace).copy()
    for part in (name, *parts):
        state.update(_measured(part))
    return LockKey(alias, name, state.digest(), namespace)


@functools.lru_cache(maxsize=64)  # the same for all names of an alias, and half of the work
def _keyed(site_key: str, alias: str, namespace: str) -> hashlib.blake2b:
    secret = hashlib.blake2b(site_key.encode("utf-8", "surrogatepass")).digest()
    begun, salt = (_measured(alias) + _measured(namespace), _SALT) if namespace else (_measured(alias), b"")
    return hashlib.blake2b(begun, key=secret, digest_size=32, person=_PERSON, salt=salt)


def _measured(part: str) -> bytes:
    raw = part.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "big") + raw
