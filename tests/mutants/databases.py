"""Faults of the engines whose locks belong to a session, and of locks inside the caller's transaction."""

from __future__ import annotations

from .mutant import DEADLINE_TESTS, Mutant

DATABASES = (
    Mutant(
        "sessions: a child of a fork goes on using its parent's connections",
        "R22",
        "backends/sessions/backend.py",
        "        super().after_fork()\n        self.sessions.abandon()\n",
        "        super().after_fork()\n",
        ("tests/contract/test_fork.py", "tests/faults/test_fork.py"),
        only="postgres or mysql",
    ),
    Mutant(
        "sessions: no heartbeat",
        "R18",
        "backends/sessions/session.py",
        "elif self.claims and self.unread is None and now - self.heard_at >= HEARTBEAT:",
        "elif False:",
        ("tests/faults/test_silence.py",),
        only="r18",
    ),
    Mutant(
        "sessions: an unreachable server counts as busy",
        "R6",
        "backends/sessions/backend.py",
        "            raise unavailable(self.alias, error) from (error.__cause__ or error)\n\n    async def _try(",
        "            return None\n\n    async def _try(",
        DEADLINE_TESTS,
        only="r6",
    ),
    Mutant(
        "sessions: lock_timeout that fires after the grant, or NULL after it, leaves the lock held",
        "R7",
        "backends/sessions/backend.py",
        "                if answer is None:\n",
        "                if False:\n",
        ("tests/engines/postgres/test_backend.py", "tests/engines/mysql/test_backend.py"),
        only="r7",
    ),
    Mutant(
        "sessions: a release of a reader that was interrupted is made again",
        "R1",
        "backends/sessions/backend.py",
        "        if session.waits or session.shares(claim):",
        "        if session.waits:",
        ("tests/faults/test_interrupted.py",),
        only="r1",
    ),
    Mutant(
        "PostgreSQL: a server that is known not to exclude is not refused",
        "R22b",
        "backends/postgres/session.py",
        "    if PRETENDERS.search(version):",
        "    if False:",
        ("tests/engines/postgres/test_poolers.py",),
        only="r22b",
    ),
    Mutant(
        "PostgreSQL: a deadlock of two transactions is a timeout",
        "R8",
        "backends/postgres/transaction.py",
        "            if code == DEADLOCK_DETECTED:\n                raise DeadlockDetected from error\n",
        "            if code == DEADLOCK_DETECTED:\n                return None\n",
        ("tests/transactions/test_waiting_inside.py",),
        only="r8",
    ),
    Mutant(
        "PostgreSQL: a pooler in transaction mode is not refused",
        "R22b",
        "backends/postgres/session.py",
        "            if not _hears(session, database):",
        "            if False:",
        ("tests/engines/postgres/test_poolers.py", "tests/transactions/test_pools.py"),
    ),
    Mutant(
        "PostgreSQL: after an error in the transaction its lock still counts as held",
        "R14",
        "backends/postgres/backend.py",
        'return grant.claim.scope == "transaction" and grant.session.aborted',
        "return False",
        ("tests/transactions/test_savepoints.py",),
    ),
)
