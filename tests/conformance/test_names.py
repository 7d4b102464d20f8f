"""R3: two names never exclude each other by accident of spelling, and two sites never do."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from django_distlock import advisory_lock
from tests.conformance.conftest import across_processes

if TYPE_CHECKING:
    from tests.conformance.actors import Actor

# What databases, drivers and clients are known to fold, cut, strip, quote or choke on.
TRAPS = [
    "lock",
    "Lock",
    "LOCK",
    "lóck",
    "lo\u0301ck",
    "löck",
    "loeck",
    "lock ",
    " lock",
    "lock  ",
    "lock\t",
    "lock\n",
    "lock\x00",
    "lock\x00a",
    "\x00",
    "\x00\x00",
    "l%ck",
    "l%%ck",
    "lock%s",
    "l_ck",
    "lo/ck",
    "/lock",
    "lock/",
    "../lock",
    "lo\\ck",
    "lo'ck",
    "lo''ck",
    'lo"ck',
    "lo`ck",
    "lo;ck",
    "lock:1",
    "{lock}",
    "straße",
    "strasse",
    "STRASSE",
    "\u0131",
    "i",
    "\u0130",
    "\ud800",
    "\udfff",
    "\udcff",
    "😀",
    "\ufe0f",
    "\u200b",
    "\ufeff",
    "ﬁ",
    "fi",
    "x" * 511,
    "x" * 512,
    "X" * 512,
    "x" * 64,
    "x" * 65,
    "x" * 63 + "y" + "x",
    "é" * 512,
    "😀" * 512,
]


def test_r3_names_that_engines_confuse_are_all_different(me: Actor, other: Actor, using: str, name: str) -> None:
    """All are held at once; each excludes itself."""
    prefixed = [trap if len(trap) >= 400 else trap + name[-60:] for trap in TRAPS]
    leases = [me.acquire(advisory_lock(trap, using=using), timeout=0) for trap in prefixed]
    assert all(lease.held for lease in leases)
    assert len({id(lease._hold) for lease in leases}) == len(leases), (
        "one name was taken for another, and entered again"
    )
    for trap in prefixed:
        assert other.try_acquire(advisory_lock(trap, using=using)) is None
    for lease in leases:
        me.release(lease)


def test_r3_another_process_spells_it_alike(me: Actor, rival: Any, using: str, name: str) -> None:
    for trap in ("lo\u0301ck\x00 ", "l%ck/{}", "x" * 400, "\N{GRINNING FACE}é"):
        held = rival.acquire(using, trap + name[-60:])
        assert me.try_acquire(advisory_lock(trap + name[-60:], using=using)) is None
        rival.release(held)


def _variants(name: str) -> set[str]:
    """What careless code might take for the same."""
    variants = {
        name.lower(),
        name.upper(),
        name.casefold(),
        name.strip(),
        name + " ",
        name + "\x00",
        name.rstrip("\x00"),
    }
    variants |= {unicodedata.normalize(form, name) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    variants |= {name.replace("%", "%%"), name.replace("/", "//"), name[:64], name[:60], name[:-1]}
    return {variant for variant in variants if 0 < len(variant) <= 512 and variant != name}


@pytest.mark.tier2
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=()), min_size=1, max_size=80))
def test_r3_fuzz_of_names(using: str, text: str) -> None:
    """Any str is a name; whatever looks like it is another one."""
    assume(text not in TRAPS)
    lock = advisory_lock(text, using=using)
    with lock as lease:
        assert lease.name == text
        assert lease.held
        for variant in sorted(_variants(text)):
            with advisory_lock(variant, using=using, timeout=0) as other:
                assert other._hold is not lease._hold, "it was taken for the other name, and entered again"
        again = lock.try_acquire()
        assert again is not None
        again.release()


def test_r3_the_wire_carries_nothing_of_the_spelling_that_could_be_confused(
    me: Actor, using: str, name: str, backend: Any
) -> None:
    """What an engine that keeps a hash shows of a name is that hash."""
    lease = me.acquire(advisory_lock(name + " 'Lóck'\x00", using=using))
    keys = [info.key for info in backend.inspect()]
    assert len(keys) >= 1
    assert all(key.isascii() and key == key.lower() and "'" not in key and " " not in key for key in keys)
    assert all(len(key) <= 64 for key in keys)
    me.release(lease)


@across_processes
def test_r3_two_sites_do_not_exclude_each_other(rival: Any, using: str, name: str, settings: Any) -> None:
    """The rival is another site on the same server until the keys are the same."""
    ours = settings.DISTLOCK_SITE_KEY
    held = rival.acquire(using, name)
    assert advisory_lock(name, using=using).try_acquire() is None
    settings.DISTLOCK_SITE_KEY = ours + "x"
    with advisory_lock(name, using=using, timeout=0) as lease:
        assert lease.held
    settings.DISTLOCK_SITE_KEY = ours
    assert advisory_lock(name, using=using).try_acquire() is None
    rival.release(held)
