"""``python -m tests.mutants [-k WORDS] [--list]``: exit status 1 if a fault survives, or cannot be made."""

from __future__ import annotations

import argparse
import sys
import time

from .catalog import MUTANTS
from .runner import Outcome, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument(
        "-k", metavar="WORDS", default="", help='only those whose title, rule or file has them; "a or b"'
    )
    parser.add_argument("--list", action="store_true", help="show them, and run nothing")
    wanted = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if mutant.matches(wanted.k)]
    if not chosen:
        print(f"No mutant has {wanted.k!r} in its title, rule or file.", file=sys.stderr)
        return 1
    if wanted.list:
        for mutant in chosen:
            print(f"{mutant.rule:12} {mutant.title} ({mutant.path})")
        return 0
    began = time.monotonic()
    outcomes = run(chosen, lambda outcome: print(line_of(outcome), flush=True))
    missed = [outcome for outcome in outcomes if not outcome.caught_by]
    seconds = time.monotonic() - began
    print(f"{len(outcomes)} faults, {len(outcomes) - len(missed)} noticed, {len(missed)} not, in {seconds:.0f} s.")
    for outcome in missed:
        print(f"- {outcome.mutant.title}: {outcome.trouble.partition(chr(10))[0]}")
    return 1 if missed else 0


def line_of(outcome: Outcome) -> str:
    mutant = outcome.mutant
    return f"{outcome.seconds:5.1f} s  {mutant.rule:12} {mutant.title}\n         {outcome.caught_by or outcome.trouble}"


if __name__ == "__main__":
    sys.exit(main())
