"""Faults of the engines whose locks belong to a session, and of locks inside the caller's transaction."""

from __future__ import annotations

from .mutant import Mutant

EXCLUSION = "tests/conformance/test_exclusion.py"
SESSIONS = "backends/sessions"
POSTGRES = "backends/postgres"
MYSQL = "backends/mysql"

DATABASES = (
    Mutant(
        "sessions: no second session is asked whether the server excludes",
        "R22b",
        f"{SESSIONS}/backend.py",
        "        if not self._proven_at:\n            try:",
        "        if False:\n            try:",
        ("tests/backends/postgres/test_pretending.py", "tests/backends/mysql/test_pretending.py"),
        "r22b",
    ),
    Mutant(
        "sessions: a child of a fork goes on using its parent's connections",
        "R22",
        f"{SESSIONS}/backend.py",
        "        super().after_fork()\n        self.sessions.abandon()\n",
        "        super().after_fork()\n",
        ("tests/conformance/test_fork.py", "tests/faults/test_fork.py"),
        "postgres or mysql",
    ),
    Mutant(
        "sessions: no heartbeat",
        "R18",
        f"{SESSIONS}/session.py",
        "if self.dead is None and self.held and now - self.replied_at >= HEARTBEAT:",
        "if False:",
        ("tests/backends/sessions/test_sessions.py", "tests/faults/test_hung_server.py"),
        "r18",
    ),
    Mutant(
        "sessions: an unreachable server counts as busy",
        "R6",
        f"{SESSIONS}/backend.py",
        "            raise unavailable(self.alias, error) from (error.__cause__ or error)\n\n    def _try(",
        "            return None\n\n    def _try(",
        ("tests/conformance/test_timeouts.py",),
        "r6",
    ),
    Mutant(
        "sessions: a release that fails is taken for a release",
        "R6",
        f"{SESSIONS}/backend.py",
        '            session.kill("a release failed")\n            raise unavailable(self.alias, error) from error\n',
        "            return True\n",
        ("tests/faults/test_hung_server.py", "tests/faults/test_lost_replies.py", "tests/backends/mysql/test_kills.py"),
        "release",
    ),
    Mutant(
        "sessions: a session that holds a lock is idle after five seconds",
        "R23",
        f"{SESSIONS}/pool.py",
        "                if session.held or session.orphaned_at is not None:",
        "                if session.orphaned_at is not None:",
        ("tests/backends/sessions/test_sessions.py",),
    ),
    Mutant(
        "PostgreSQL: lock_timeout that fires after the grant leaves the lock held (the fast path)",
        "R7",
        f"{POSTGRES}/session.py",
        "            run(self.clear(max(until, clock.now()) + GRACE))\n            return False",
        "            return False",
        ("tests/backends/postgres/test_backend.py",),
        "r7",
    ),
    Mutant(
        "PostgreSQL: a deadlock of two transactions is a timeout",
        "R8",
        f"{POSTGRES}/transaction.py",
        "            if code == DEADLOCK_DETECTED:\n                raise DeadlockDetected from error\n",
        "            if code == DEADLOCK_DETECTED:\n                return None\n",
        ("tests/manager/transactions/test_waiting_inside.py",),
        "r8",
    ),
    Mutant(
        "PostgreSQL: a pooler in transaction mode is not refused",
        "R22b",
        f"{POSTGRES}/session.py",
        "        if self.pooled and (self.server_id",
        "        if False and (self.server_id",
        ("tests/backends/postgres/test_poolers.py", "tests/manager/transactions/test_pools.py"),
    ),
    Mutant(
        "PostgreSQL: after an error in the transaction its lock still counts as held",
        "R14",
        f"{POSTGRES}/backend.py",
        'return grant.claim.scope == "transaction" and grant.session.aborted',
        "return False",
        ("tests/manager/transactions/test_aborted.py",),
    ),
)
