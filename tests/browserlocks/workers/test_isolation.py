"""What pages and scripts must be served with, and what is said when they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.browsers import OTHER_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Table

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: three browsers
CREATE = "const { WorkerMutex } = await import('/distlock-worker.js'); WorkerMutex.create()"
CHECK = "const { checkWorkerScript } = await import('/distlock-worker.js'); await checkWorkerScript('%s')"


@pytest.fixture
def page(opened: Table) -> Iterator[Table]:
    yield opened
    opened.open("/isolated/")


@pytest.mark.parametrize("path", ["/without-embedder/", "/without-opener/"])
def test_a_page_that_may_not_share_memory_names_the_headers(page: Table, path: str) -> None:
    page.open(path)
    said = page.error(CREATE)
    assert said.startswith("IsolationError: This page may not share memory with workers.")
    assert "Cross-Origin-Opener-Policy: same-origin" in said
    assert "Cross-Origin-Embedder-Policy: require-corp" in said
    assert "SECURE_CROSS_ORIGIN_OPENER_POLICY" in said


def test_a_script_without_its_header_is_found(page: Table) -> None:
    """The browser starts no such worker, and gives no reason."""
    page.open("/isolated/")
    page.ask(CHECK % "/hand.js")
    assert page.ask(
        "return new Promise((resolve) => {"
        "  const worker = new Worker('/hand-without-embedder.js', { type: 'module' });"
        "  worker.onerror = (event) => resolve(event.message ?? '');"
        "})"
    ) in ("", None)
    said = page.error(CHECK % "/hand-without-embedder.js")
    assert "/hand-without-embedder.js is served without Cross-Origin-Embedder-Policy: require-corp" in said


@pytest.mark.alike
def test_other_faults_of_a_script_are_named(page: Table) -> None:
    page.open("/isolated/")
    assert "is answered with 404" in page.error(CHECK % "/nowhere.js")
    assert "not as JavaScript" in page.error(CHECK % "/without-opener/")
    assert "is on another origin: serve" in page.error(CHECK % "https://cdn.example/hand.js")


@pytest.mark.alike
def test_an_insecure_context_is_named(page: Table) -> None:
    """http on a LAN."""
    port = urlsplit(page.url).port
    page.tab.open(f"http://{OTHER_NAME}:{port}/isolated/")
    assert "secure contexts only: serve this page over HTTPS" in page.error(CREATE)


@pytest.mark.alike
def test_a_browser_without_shared_memory_is_named(page: Table) -> None:
    """GTK's MiniBrowser says that a page is isolated, and has none."""
    page.open("/isolated/")
    assert "This browser shares no memory" in page.error(f"delete globalThis.SharedArrayBuffer; {CREATE}")
