"""R3: two names never exclude each other by accident of spelling, and two sites never do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock import advisory_lock
from tests.contract.conftest import across_processes

if TYPE_CHECKING:
    from tests.contract.actors import Actor

# What databases, drivers and clients are known to fold, cut, strip, quote or choke on.
TRAPS = [
    *["lock", "Lock", "LOCK", "lóck", "lo\u0301ck", "loeck", "lock ", " lock", "lock\t", "lock\n", "lock\x00", "\x00"],
    *["l%ck", "lock%s", "l_ck", "lo/ck", "lock/", "lo\\ck", "lo'ck", 'lo"ck', "lo;ck", "lock:1", "{lock}"],
    *["straße", "STRASSE", "\u0131", "i", "\u0130", "\ud800", "\udfff", "😀", "\ufe0f", "\u200b", "ﬁ", "fi"],
    *["x" * 511, "x" * 512, "X" * 512, "x" * 65, "x" * 63 + "y" + "x", "é" * 512, "😀" * 512],
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
