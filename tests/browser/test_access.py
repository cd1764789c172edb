"""Login at a real OpenID Connect provider on loopback: who is let in, who is not, whose job may be stopped by whom."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.servers import free_port, run_server

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
SMALL = "pool_slot_count=20000&req_to_token_pool_size=16&cuda_graph_max_bs=16&max_seq_len_per_req=2048"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a dashboard that asks for a login, and of its provider."""
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules" / "oidc-provider").is_dir():
        pytest.skip("no login provider on this machine (install Node.js, then npm ci --prefix tests/browser)")
    port, provider_port = free_port(), free_port()
    url, issuer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{provider_port}"
    home = tmp_path_factory.mktemp("shared-home")
    environment = {
        "KVCANARY_OIDC_ISSUER": issuer,
        "KVCANARY_OIDC_CLIENT_ID": "kvcanary",
        "KVCANARY_OIDC_CLIENT_SECRET": "a secret of the test",
        "KVCANARY_URL": url,
        "KVCANARY_COOKIE_SECRET": "a cookie secret of the test, long enough",
        "KVCANARY_ALLOW": "ada@example.org,group:readers",
        "KVCANARY_ADMINS": "@operators.example",
    }
    with (
        _provider(node, provider_port, f"{url}/oauth2callback", home / "provider.log"),
        run_server(home / "server", port=port, env=environment),
    ):
        yield url, issuer


@contextmanager
def _provider(node: str, port: int, redirect_uri: str, log: Path) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(
            [node, str(HERE / "provider.mjs"), str(port), redirect_uri], cwd=HERE, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            end = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < end:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/.well-known/openid-configuration", timeout=2):
                        break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.1)
            else:
                raise RuntimeError(f"the provider did not start:\n{log.read_text()}")
            yield
        finally:
            process.terminate()
            process.wait(timeout=20)


@contextmanager
def logged_in(browser: Browser, url: str, name: str, path: str = "") -> Iterator[Page]:
    """A browser of its own for somebody, after the provider has asked for name and password and for consent."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto(f"{url}/{path}")
    page.get_by_role("button", name="Log in").click()
    page.locator("input[name=login]").fill(name)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Continue").click()
    page.wait_for_url(re.compile(re.escape(url)))
    yield page
    context.close()


def test_a_stranger_sees_a_login_and_nothing_else(browser: Browser, addresses: tuple[str, str]) -> None:
    page = browser.new_page()
    for path in ("", "benchmark", "fault_lab", "inspect_log"):
        page.goto(f"{addresses[0]}/{path}")
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        assert page.locator("input, textarea, .kvc-verdict").count() == 0
    page.close()


def test_somebody_on_the_list_works_and_leaves(browser: Browser, addresses: tuple[str, str]) -> None:
    with logged_in(browser, addresses[0], "ada") as page:
        expect(page.get_by_role("heading", level=1, name="Plan")).to_be_visible()
        expect(page.get_by_text("Logged in as ada@example.org")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("button", name=re.compile("Yes")).click()
        page.goto(addresses[0])
        expect(page.get_by_role("button", name="Log in")).to_be_visible()


@pytest.mark.parametrize("name", ["bob", "eve"])
def test_somebody_else_is_told_so(browser: Browser, addresses: tuple[str, str], name: str) -> None:
    with logged_in(browser, addresses[0], name) as page:
        expect(page.get_by_text("is logged in, but not on the list of this server")).to_be_visible()
        assert page.locator("input, textarea, .kvc-verdict").count() == 0


def test_a_forged_cookie_is_no_login(browser: Browser, addresses: tuple[str, str]) -> None:
    context = browser.new_context()
    context.add_cookies([{"name": "_streamlit_user", "value": '{"email":"ada@example.org","is_logged_in":true}', "url": addresses[0]}])
    page = context.new_page()
    page.goto(addresses[0])
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    context.close()


def test_settings_stay_with_their_session_and_jobs_with_their_owner(browser: Browser, addresses: tuple[str, str]) -> None:
    with logged_in(browser, addresses[0], "ada") as ada, logged_in(browser, addresses[0], "olga") as olga:
        ada.get_by_label("KV slots", exact=True).fill("77777")
        expect(ada.get_by_text("77\u202f777 slots")).to_be_visible()
        olga.reload()
        expect(olga.get_by_label("KV slots", exact=True)).not_to_have_value("77777")
        ada.goto(f"{addresses[0]}/benchmark?{SMALL}")
        ada.get_by_text("long", exact=True).click()
        ada.get_by_role("button", name="Run").click()
        stop = ada.get_by_test_id("stMain").get_by_role("button", name="Stop")
        expect(stop).to_be_enabled()
        olga.goto(f"{addresses[0]}/benchmark?{SMALL}")
        expect(olga.get_by_test_id("stMain").get_by_text("Started by ada@example.org")).to_be_visible()
        # olga is an administrator, so she may; ada could not stop hers.
        olga.get_by_test_id("stMain").get_by_role("button", name="Stop").click()
        for page in (ada, olga):
            expect(page.get_by_text(re.compile("^Stopped"))).to_be_visible()
            # A click while the page is still being drawn anew would hit a button that is about to be replaced.
            expect(page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible()
        olga.get_by_text("long", exact=True).click()
        olga.get_by_role("button", name="Run").click()
        expect(olga.get_by_test_id("stMain").get_by_role("button", name="Stop")).to_be_enabled()
        ada.reload()
        expect(ada.get_by_test_id("stSidebar").get_by_text("Started by olga@operators.example")).to_be_visible()
        expect(ada.get_by_test_id("stSidebar").get_by_role("button", name="Stop")).to_be_disabled()
        olga.get_by_test_id("stMain").get_by_role("button", name="Stop").click()
        expect(olga.get_by_text(re.compile("^Stopped"))).to_be_visible()
