"""One fault: what is replaced, which promise it breaks, and which tests should notice it."""

from __future__ import annotations

from dataclasses import dataclass

PACKAGE = "django_distlock"


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
