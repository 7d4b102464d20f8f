"""All scripts without a browser: their size, their types, and that they need nothing that a strict policy forbids."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import PACKAGE

pytestmark = pytest.mark.tier2
STATIC = PACKAGE / "static" / "django_distlock"
SCRIPT = STATIC / "distlock.js"
BUDGETS = {"distlock": 9 * 1024, "distlock-once": 2 * 1024, "editing": 12 * 1024}  # bytes
# The Makefile has this version of TypeScript from npm.
VERSION = "5.9.3"
COMPILER = Path(sys.prefix) / "typescript" / "node_modules" / "typescript" / "lib" / "tsc.js"
OPTIONS = ("--noEmit", "--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")
# The compiler finds fault with an expected error that is none.
CODE = """
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
// @ts-expect-error: the lock may be null
locks.request("grant", { ifAvailable: true }, (lock) => lock.fence);
// @ts-expect-error: an option that does not exist
locks.request("grant", { steal: true }, () => {});
// @ts-expect-error: a scope that does not exist
locks.hold("grant", { scope: "planet" });
// @ts-expect-error: no callback
locks.request("grant");
// @ts-expect-error: there may be no fence
const fence: number = (await locks.hold("grant")).fence;
"""


def node(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run(["node", *arguments], cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_script_is_one_small_file_that_makes_no_markup_and_no_code_out_of_text() -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.style\b|style=|^import\b"
    )
    for name, most in BUDGETS.items():
        script = STATIC / f"{name}.js"
        assert len(gzip.compress(script.read_bytes(), 9)) < most
        assert not re.findall(forbidden, script.read_text(), re.MULTILINE)


def test_without_events_no_timeout_ends_too_early_and_nothing_is_lost(tmp_path: Path) -> None:
    module = tmp_path / "distlock.mjs"
    module.write_bytes(SCRIPT.read_bytes())
    found = json.loads(node(str(Path(__file__).parent / "requests.mjs"), str(module)))
    # timers of browsers take 31 bits: a longer one fires at once
    waits = dict.fromkeys(["undefined", "null", "Infinity", str(2**31)], "waits")
    assert found["waits"] == {**waits, "100": "LockTimeoutError"}
    # a shorter ttl is asked for at each renewal: a killed browser would block for the ttl of the grant
    assert found["asked"] == [1.5]
    assert found["lost"] == 0  # of more leases than one request renews


def test_the_types_fit_the_script_and_find_mistakes(tmp_path: Path) -> None:
    types = (STATIC / "distlock.d.ts").read_text()
    (tmp_path / "distlock.d.ts").write_text(types)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "code.ts").write_text(CODE)
    assert node(str(COMPILER), *OPTIONS, "--lib", "es2022,dom", "code.ts", cwd=tmp_path) == ""
    keys = f"console.log(JSON.stringify(Object.keys(await import({json.dumps(SCRIPT.as_uri())}))))"
    exported = json.loads(node("--input-type=module", "-e", keys))
    assert sorted(exported) == sorted(re.findall(r"^export class (\w+)", types, re.MULTILINE))
