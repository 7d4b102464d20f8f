"""Faults of the engines whose locks are leases: Redis, Redlock, the lease table, ZooKeeper, memory."""

from __future__ import annotations

from .mutant import Mutant

REDIS = "backends/redis"
REDLOCK = "backends/redlock"
TABLE = "backends/leasetable"
ZOOKEEPER = "backends/zookeeper"
TTL = "tests/conformance/test_ttl.py"
BREAK = "tests/conformance/test_break.py"
FENCES = "tests/conformance/test_extend_fence.py"

LEASES = (
    Mutant(
        "Redis: the release compares nothing and deletes the lock of the next holder",
        "R17",
        f"{REDIS}/scripts/release.lua",
        "gone = call('HDEL', held, who)",
        "gone = call('DEL', held)",
        (BREAK, TTL, "tests/backends/redis/test_backend.py"),
        "redis",
    ),
    Mutant(
        "Redis: nothing is withdrawn after a lost reply",
        "R7",
        f"{REDIS}/scripts/leave.lua",
        "local was = drop(ARGV[1])",
        "local was = nil",
        ("tests/backends/redis/test_faults.py", "tests/backends/redis/test_late.py"),
        "r7",
    ),
    Mutant(
        "Redis: the lock is handed to a waiter that does not listen at this server",
        "R22a",
        f"{REDIS}/scripts/state.lua",
        "    if turn and connected(channel) then",
        "    if turn then",
        ("tests/backends/redis/test_topology.py", "tests/backends/redis/test_processes.py"),
    ),
    Mutant(
        "Redis: valid_until counts from the reply",
        "R19",
        f"{REDIS}/commands.py",
        "return self._grant(fence, self._asked, 0.0), 0.0",
        "return self._grant(fence, clock.now(), 0.0), 0.0",
        ("tests/backends/redis/test_faults.py",),
        "r19",
    ),
    Mutant(
        "Redis: the fence is the clock alone, and falls with it",
        "R21",
        f"{REDIS}/scripts/clock.lua",
        "if last and last >= us and last < 2^53 - 1 then",
        "if false then",
        ("tests/backends/redis/test_backend.py",),
        "r21",
    ),
    Mutant(
        "Redis: a caller that comes now overtakes the queue",
        "R4",
        f"{REDIS}/scripts/acquire.lua",
        "if not others and admits(who, limit) then",
        "if admits(who, limit) then",
        ("tests/conformance/test_shared.py", "tests/conformance/test_order.py"),
        "redis",
    ),
    Mutant(
        "Redlock: two of five nodes are a majority",
        "R1",
        f"{REDLOCK}/rounds.py",
        "return nodes // 2 + 1",
        "return nodes // 2",
        ("tests/backends/redlock/test_quorum.py", "tests/backends/redlock/test_faults.py"),
    ),
    Mutant(
        "clean-up: a server that hangs holds up the others",
        "R7",
        "backends/cleanup.py",
        "each[1].lane == lane and ",
        "",
        ("tests/backends/test_cleanup.py",),
    ),
    Mutant(
        "Redlock: a vote whose reply was lost counts",
        "R22a",
        f"{REDLOCK}/backend.py",
        "counted = [NodeAnswer.FAILED if _in_doubt(session, vote) else answer for vote, answer in pairs]",
        "counted = [answer for vote, answer in pairs]",
        ("tests/backends/redlock/test_votes.py",),
    ),
    Mutant(
        "lease table: the renewal revives a lease that has expired",
        "R20",
        f"{TABLE}/statements.py",
        'expires_at = {now} + :ttl WHERE digest = :digest AND token = :token AND expires_at > {now}"',
        'expires_at = {now} + :ttl WHERE digest = :digest AND token = :token"',
        (TTL, "tests/backends/leasetable/test_backend.py"),
        "leasetable",
    ),
    Mutant(
        "lease table: nothing is withdrawn after a lost reply",
        "R7",
        f"{TABLE}/backend.py",
        "            if isinstance(waiter, TicketHolder) or error.uncertain:",
        "            if False:",
        ("tests/backends/leasetable/test_faults.py",),
    ),
    Mutant(
        "ZooKeeper: the end of a waiter is taken for the release of the holder",
        "R1",
        f"{ZOOKEEPER}/queue.py",
        "is_exclusive(behind) and (yield from watch.marked(until))",
        "is_exclusive(behind)",
        ("tests/backends/zookeeper/test_hand_over.py",),
    ),
    Mutant(
        "ZooKeeper: a broken connection is no reason for doubt",
        "R18",
        f"{ZOOKEEPER}/session.py",
        "return self.state is not self.CONNECTED or clock.now() >= self.heard_at + self.timeout * DOUBT",
        "return False",
        ("tests/faults/test_zookeeper.py", "tests/conformance/test_cancel_on_loss.py"),
        "zookeeper",
    ),
)
