"""The scripts without a browser: their size, their types, and that they need nothing that a strict policy forbids."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import PACKAGE

pytestmark = pytest.mark.tier2

STATIC = PACKAGE / "static" / "django_distlock"
SCRIPTS = (STATIC / "distlock.js", STATIC / "distlock-once.js")
BUDGET = 9 * 1024  # bytes
# The Makefile has this version of TypeScript from npm.
VERSION = "5.9.3"
COMPILER = Path(sys.prefix) / "typescript" / "node_modules" / "typescript" / "lib" / "tsc.js"
OPTIONS = ("--noEmit", "--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")

RIGHT = """
import { LockError, LockLostError, LockManager, LockTimeoutError, type Lock } from "./distlock.js";

const locks = new LockManager({ endpoint: "/distlock/", events: "auto", csrf: async () => "token" });
const saved: number = await locks.request("grant", { timeout: 10_000 }, async (lock) => {
  const left: number = lock.expiresIn;
  await fetch("/cart/", { method: "POST", headers: lock.headers, signal: lock.signal });
  return left;
});
await locks.request("grant", { ifAvailable: true }, (lock) => lock?.fence);
await locks.request("cart", { scope: "browser" }, (lock) => lock.guarantee === "browser");
const held: Lock = await locks.hold("grant");
await held.release();
const { held: leases, pending } = await locks.query();
console.log(saved, leases[0].expires_in, pending[0].place);
try {
  await locks.request("grant", () => {});
} catch (error) {
  if (error instanceof LockLostError && error.reason === "expired") throw error;
  if (error instanceof LockTimeoutError || (error instanceof LockError && error.reason === "quota")) console.log(error);
}
"""
WRONG = {
    "a callback that forgets that the lock may be null": (
        'locks.request("grant", { ifAvailable: true }, (lock) => lock.fence);'
    ),
    "an option that does not exist": 'locks.request("grant", { steal: true }, () => {});',
    "a scope that does not exist": 'locks.hold("grant", { scope: "planet" });',
    "no callback": 'locks.request("grant");',
    "a fence that is always there": 'const fence: number = (await locks.hold("grant")).fence;',
}


def test_the_script_is_small() -> None:
    assert len(gzip.compress(SCRIPTS[0].read_bytes(), 9)) < BUDGET


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_one_file_that_makes_no_markup_and_no_code_out_of_text(script: Path) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.style\b|style=|^import\b"
    )
    assert not re.findall(forbidden, script.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def without_a_browser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What requests.mjs finds, with ``events: false``."""
    module = tmp_path_factory.mktemp("script") / "distlock.mjs"
    module.write_bytes(SCRIPTS[0].read_bytes())
    command = ["node", str(Path(__file__).parent / "requests.mjs"), str(module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_timeout_that_never_ends(without_a_browser: Any) -> None:
    """Timers of browsers take 31 bits: a longer one fires at once."""
    waits = dict.fromkeys(["undefined", "null", "Infinity", str(2**31)], "waits")
    assert without_a_browser["waits"] == {**waits, "100": "LockTimeoutError"}


def test_a_shorter_ttl_is_asked_for_at_each_renewal(without_a_browser: Any) -> None:
    """The server would prolong the lease by the ttl of the grant: a killed browser blocks for that long."""
    assert without_a_browser["asked"] == [1.5]


def test_more_leases_than_one_request_renews(without_a_browser: Any) -> None:
    assert without_a_browser["lost"] == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "distlock.d.ts").write_text((STATIC / "distlock.d.ts").read_text())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return tmp_path


def compiled(folder: Path, code: str) -> str:
    """What the compiler says against ``code``."""
    (folder / "code.ts").write_text(f"{code}\nexport {{}};\n")
    command = ["node", str(COMPILER), *OPTIONS, "--lib", "es2022,dom", "code.ts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout + done.stderr


def test_the_types_fit_the_examples(folder: Path) -> None:
    assert compiled(folder, RIGHT) == ""


@pytest.mark.parametrize("mistake", WRONG)
def test_the_types_find_mistakes(folder: Path, mistake: str) -> None:
    found = compiled(
        folder, f'import {{ LockManager }} from "./distlock.js";\nconst locks = new LockManager();\n{WRONG[mistake]}'
    )
    assert len(re.findall(r"^code\.ts\(3,\d+\): error", found, re.MULTILINE)) == 1, found


def test_the_types_name_what_the_script_exports() -> None:
    code = f"console.log(JSON.stringify(Object.keys(await import({json.dumps(SCRIPTS[0].as_uri())}))))"
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code], capture_output=True, text=True, timeout=60, check=True
    )
    typed = re.findall(r"^export class (\w+)", (STATIC / "distlock.d.ts").read_text(), re.MULTILINE)
    assert sorted(json.loads(done.stdout)) == sorted(typed)
