"""A process whose standard library is patched before Django is imported: ``python -m tests.contract.green ALIASES
DATABASES`` prints, for each alias, what became of some greenlets that want one lock, as a line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any


def crowd(using: str) -> dict[str, Any]:
    """How many of five greenlets were inside at most, how many entered, and what went wrong."""
    import os
    import threading
    import time

    from django_distlock import advisory_lock

    seen: dict[str, Any] = {"inside": 0, "most": 0, "entered": 0, "errors": []}

    def work() -> None:
        try:
            with advisory_lock(f"green-{os.getpid()}", using=using, timeout=20):
                seen["inside"] += 1
                seen["most"] = max(seen["most"], seen["inside"])
                time.sleep(0.002)  # lets the others run
                seen["inside"] -= 1
                seen["entered"] += 1
        except Exception as error:
            seen["errors"].append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def report(link: Any, aliases: list[str]) -> None:
    link.say({using: crowd(using) for using in aliases})


if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()
    _, aliases, databases = sys.argv
    from tests.support.child import load, run

    load()
    run("tests.contract.green:report", json.dumps([json.loads(aliases)]), databases)
