"""Take the pictures of the documentation from the running app: python tools/screenshots.py [OUTPUT_FOLDER]

Starts the dashboard on a free port with an empty data folder, runs the quick benchmark and campaign, and photographs each page light and dark.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PLAN = "pool_slot_count=392920&req_to_token_pool_size=4096&max_seq_len_per_req=40964&cuda_graph_max_bs=256&chunked_prefill_size=8192"
MODEL = "num_layers=36&num_kv_heads=8&head_dim=128&model_dtype=bfloat16&kv_dtype=bfloat16&model=Qwen%2FQwen3-8B"
MEMORY = "device_memory_bytes=85520809984&weight_bytes=16381470720&mem_fraction_static=0.88&real_data=partial&sweep_interval=120"

SETTINGS = f"{PLAN}&{MODEL}&{MEMORY}"
WIDTH, HEIGHT = 1440, 900
# A campaign on a busy machine takes minutes.
TIMEOUT_MS = 420_000


def main(output: Path) -> None:
    """Write <page>-<scheme>.png for every page."""
    output.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true"]
        environment = {**os.environ, "KVCANARY_HOME": home}
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                for scheme in ("light", "dark"):
                    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
                    page.set_default_timeout(TIMEOUT_MS)
                    for name, show in PAGES.items():
                        show(page, f"http://127.0.0.1:{port}")
                        _photograph(page, output / f"{name}-{scheme}.png")
                    page.close()
                browser.close()
        finally:
            server.terminate()
            server.wait(timeout=20)


def _plan(page: Page, url: str) -> None:
    page.goto(f"{url}/?{SETTINGS}")
    page.locator(".js-plotly-plot .barlayer").first.wait_for()


def _benchmark(page: Page, url: str) -> None:
    page.goto(f"{url}/benchmark?{SETTINGS}")
    _run_unless_done(page, page.get_by_text("the gate held ("))
    mark = page.locator("[class*=st-key-overview] .scatterlayer .trace .point").first
    mark.wait_for()
    mark.click(force=True)
    page.get_by_test_id("slot-card").wait_for()


def _fault_lab(page: Page, url: str) -> None:
    page.goto(f"{url}/fault_lab")
    _run_unless_done(page, page.locator("[data-testid=stMain] .js-plotly-plot .barlayer").first)


def _inspect(page: Page, url: str) -> None:
    page.goto(f"{url}/inspect_log")
    page.get_by_role("button", name="Load an example").click()
    page.get_by_test_id("inspect-card").wait_for()


def _runs(page: Page, url: str) -> None:
    page.goto(f"{url}/runs")
    page.get_by_test_id("stDataFrame").first.wait_for()


# The order matters: Runs shows what the pages before it have run.
PAGES = {"plan": _plan, "benchmark": _benchmark, "fault-lab": _fault_lab, "inspect": _inspect, "runs": _runs}


def _run_unless_done(page: Page, result: Locator) -> None:
    """Press Run on the first visit, and wait for the result; the second theme shows the same run."""
    _settle(page)
    if result.count() == 0:
        page.get_by_role("button", name="Run", exact=True).click()
    result.wait_for()
    page.get_by_test_id("stMain").get_by_role("button", name="Stop").wait_for(state="detached")


def _photograph(page: Page, path: Path) -> None:
    """The whole page, but no more than two screens of it, in 256 colours: a third of the size, and the same to the eye."""
    _settle(page)
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": WIDTH, "height": min(height, 2 * HEIGHT)})
    page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
    page.mouse.move(0, 0)
    _settle(page)
    page.screenshot(path=path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


def _settle(page: Page) -> None:
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.wait_for_load_state("networkidle")
    time.sleep(1.5)


def _wait(url: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=2):  # nosec B310
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the dashboard did not start")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
