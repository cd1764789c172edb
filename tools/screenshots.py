"""Take the pictures of the documentation from the running app: python tools/screenshots.py [OUTPUT_FOLDER]

Starts the dashboard on a free port with an empty data folder, runs the quick benchmark, and photographs each page light and dark.
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

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PLAN = "pool_slot_count=392920&req_to_token_pool_size=4096&max_seq_len_per_req=40964&cuda_graph_max_bs=256&chunked_prefill_size=8192"
MODEL = "num_layers=36&num_kv_heads=8&head_dim=128&model_dtype=bfloat16&kv_dtype=bfloat16&model=Qwen%2FQwen3-8B"
MEMORY = "device_memory_bytes=85520809984&weight_bytes=16381470720&mem_fraction_static=0.88&real_data=partial&sweep_interval=120"


def main(output: Path) -> None:
    """Write <page>-<scheme>.png for every page."""
    output.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true"]
        server = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "KVCANARY_HOME": home}, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health")
            _photograph(f"http://127.0.0.1:{port}", output)
        finally:
            server.terminate()
            server.wait(timeout=20)


def _photograph(url: str, output: Path) -> None:
    query = f"{PLAN}&{MODEL}&{MEMORY}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
            page.goto(f"{url}/?{query}")
            page.locator(".js-plotly-plot .barlayer").first.wait_for()
            _settle(page)
            page.screenshot(path=output / f"plan-{scheme}.png")
            page.goto(f"{url}/benchmark?{query}")
            if scheme == "light":
                page.get_by_role("button", name="Run").click()
                page.get_by_text("Pass: the gate held").wait_for(timeout=120_000)
            mark = page.locator("[class*=st-key-overview] .scatterlayer .trace .point").first
            mark.wait_for()
            mark.click(force=True)
            page.get_by_test_id("slot-card").wait_for()
            height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
            page.set_viewport_size({"width": 1440, "height": height})
            _settle(page)
            page.screenshot(path=output / f"benchmark-{scheme}.png")
            page.close()
        browser.close()


def _settle(page: Page) -> None:
    page.wait_for_load_state("networkidle")
    time.sleep(1.5)


def _wait(url: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the dashboard did not start")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
