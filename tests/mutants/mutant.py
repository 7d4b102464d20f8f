"""One fault: what is replaced, which promise it breaks, and which tests should notice it."""

from __future__ import annotations

from dataclasses import dataclass

PACKAGE = "django_distlock"

# Files that notice many of the faults.
LEASE_TESTS = (
    "tests/unit/test_leases.py",
    "tests/unit/shared/test_waiting.py",
    "tests/contract/test_holding.py",
    "tests/timing/test_contract_leases.py",
)
DEADLINE_TESTS = (
    "tests/contract/test_errors.py",
    "tests/unit/shared/test_waiting.py",
    "tests/timing/test_contract_deadlines.py",
)
SET_TESTS = ("tests/unit/shared/test_sets.py", "tests/contract/test_sets.py")
HOLDING_TESTS = ("tests/contract/test_holding.py", "tests/unit/shared/test_holding.py")
ORDER_TESTS = (
    "tests/unit/shared/test_reentry.py",
    "tests/contract/test_order.py",
    "tests/unit/shared/test_waiting.py",
)


class WrongMutant(Exception):
    """The fault cannot be put into the file: its text has changed."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` is found exactly once in ``file``, a path inside the package, and becomes ``new``.

    ``title``: the fault, as the table shows it. ``rule``: the promise that it breaks. ``tests``: files, or tests in
    them; ``only`` is an expression for pytest's ``-k`` that chooses among them. ``timed``: they notice it by the time
    that something takes, so that a test that was "too slow" has noticed it.
    """

    title: str
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    only: str = ""
    timed: bool = False

    @property
    def path(self) -> str:
        return f"{PACKAGE}/{self.file}"

    def matches(self, words: str) -> bool:
        """Does the title, the rule or the path contain ``words``, or one of the parts around " or "?"""
        text = f"{self.title}\n{self.rule}\n{self.path}".lower()
        return any(part in text for part in words.lower().split(" or "))

    def applied_to(self, text: str) -> str:
        """The text of the file with the fault. WrongMutant if the old text is not there exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise WrongMutant(f"{self.path} has the text of {self.title!r} {found} times, not once: change the mutant.")
        return text.replace(self.old, self.new)
