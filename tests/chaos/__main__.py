"""The command line; exit status 1 if an engine has a complaint."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SITE_KEY = "a-site-key-for-chaos-only-0123456789abcdef"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Faults at random on every engine.")
    parser.add_argument("--minutes", type=float, default=10, help="for all engines together (10)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="decides faults and their times")
    parser.add_argument("--engines", default="", help="some of them, with commas between")
    parser.add_argument("--kind", default="sound", help="a lock that is broken on purpose: no_lock, own_name ...")
    return parser.parse_args()


@contextmanager
def databases() -> Iterator[None]:
    """Databases of their own, beside those of the tests."""
    os.environ["DISTLOCK_TEST_SUFFIX"] = f"{os.environ.get('DISTLOCK_TEST_SUFFIX', '')}_chaos"
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    os.environ["DISTLOCK_SITE_KEY"] = SITE_KEY
    import django
    from django.test.utils import setup_databases, teardown_databases

    django.setup()
    made = setup_databases(verbosity=0, interactive=False, serialized_aliases=set())
    try:
        yield
    finally:
        from django.db import connections

        connections.close_all()  # the servers may have been started again
        teardown_databases(made, verbosity=0)


def main() -> int:
    wanted = arguments()
    with databases(), tempfile.TemporaryDirectory(prefix="distlock-chaos-") as root:
        from tests.chaos.faults import SERVERS, proxies
        from tests.chaos.run import run

        engines = wanted.engines.split(",") if wanted.engines else list(SERVERS)
        seconds = wanted.minutes * 60 / len(engines)
        print(f"seed {wanted.seed}: {len(engines)} engines, {seconds:.0f} s each", flush=True)
        failed = False
        with proxies(Path(root)) as doors:
            for using in engines:
                folder = Path(root) / using
                folder.mkdir()
                rng = random.Random(f"{wanted.seed} {using}")
                result = run(using, seconds, rng, doors, folder, kind=wanted.kind)
                failed = failed or bool(result.complaints)
                print(result, flush=True)
    print(f"Again: make chaos SEED={wanted.seed} MINUTES={wanted.minutes:g}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
