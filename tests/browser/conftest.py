"""A real server and a real browser; skipped with the reason where no Chromium is found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.servers import run_server

# Generous, because a busy machine draws slowly; how fast it is belongs into a measurement and not into a test.
expect.set_options(timeout=60_000)
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try a browser test a second time before it counts as failed; the summary names each that needed it."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("KVCANARY_CHROMIUM") or next((found for name in CHROMIUM_NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine (install chromium, or set KVCANARY_CHROMIUM)")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_server(tmp_path_factory.mktemp("kvcanary-home")) as url:
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page at desktop size that fails the test when the app logged an error to the console."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.set_default_timeout(60_000)
    yield opened
    context.close()
    assert not errors, errors
