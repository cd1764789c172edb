"""Importing on the Plan page: several pieces at once, marks, choices, undo, own accelerators, fetching from a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvcanary.ui import plan_environment
from tests.pages.plan_app import MODEL, checked, field_text, html, keys, open_plan, paste, source, type_into

COMMAND = "python -m sglang.launch_server --model-path org/wren-3b --context-length 6000 --page-size 16 --kv-canary log --mem-frac 0.81"
CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 26, "hidden_size": 1664, "num_attention_heads": 13,
          "num_key_value_heads": 13, "torch_dtype": "bfloat16", "max_position_embeddings": 8192}  # fmt: skip
OWN = {"schema": 1, "devices": [{"name": "Zebra Z9", "memory_mib": 61000, "memory_source": "its driver", "sheet_gb": 64,
       "bandwidth_gb_s": 2222, "bandwidth_source": "its sheet"}]}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVCANARY_FETCH_HOSTS", raising=False)
    monkeypatch.delenv(plan_environment.DEVICES_VARIABLE, raising=False)


def test_what_is_typed_over_an_import_loses_its_source_and_undo_brings_both_back() -> None:
    app = paste(type_into(open_plan(), "ring_capacity", "777"), COMMAND)
    assert source(app, "page_size") == "--page-size, line 1"
    type_into(app, "page_size", "64")
    assert source(app, "page_size") == ""
    checked(app.button(key="undo_import").click().run())
    assert (field_text(app, "page_size"), field_text(app, "ring_capacity")) == ("1", "777")
    assert "undo_import" not in keys(app)


def test_imported_fields_are_marked() -> None:
    app = open_plan()
    assert ".st-key-field-page_size" not in html(app)
    assert ".st-key-field-page_size" in html(paste(app, COMMAND))


def test_two_pieces_at_once_and_a_third_that_cannot_be_read() -> None:
    app = open_plan()
    app.text_area(key="paste_text").set_value(COMMAND).run()
    app.file_uploader(key="paste_files").set_value(
        [("config.json", json.dumps(CONFIG).encode(), "application/json"), ("noise.bin", b"\x00\x01\x02" * 50, "application/octet-stream")]
    ).run()
    checked(app)
    text = html(app)
    assert "Not imported: noise.bin is binary" in text
    assert "launch command + config.json of a model" in text
    assert (field_text(app, "num_layers"), field_text(app, "page_size")) == ("26", "16")


def test_a_command_is_completed_as_the_engine_would_where_the_device_is_known() -> None:
    without = paste(open_plan(), COMMAND)
    assert "KV slots are a placeholder: pick an accelerator under Memory" in html(without)
    stated = paste(paste(open_plan(), "[2026-02-03 04:05:06] max_total_num_tokens=70000, context_len=6000"), COMMAND)
    assert ". Pick an accelerator under Memory, and Choices works out what the command leaves to SGLang." in html(stated)
    app = open_plan(
        **{name: MODEL[name] for name in ("device_memory_bytes", "weight_bytes", "num_layers", "num_kv_heads", "head_dim", "model_dtype")}
    )
    app = paste(app, COMMAND)
    assert "Not stated, so chosen as SGLang does:" in html(app)
    assert field_text(app, "cuda_graph_max_bs") == "32"
    assert field_text(app, "chunked_prefill_size") == "4096"
    assert int(field_text(app, "pool_slot_count")) % 16 == 0
    assert source(app, "pool_slot_count").startswith("derived as SGLang does: 0.81 of the device memory")
    assert source(app, "mem_fraction_static") == "--mem-frac, line 1"


def test_the_error_of_an_empty_pool_leads_to_a_plan_that_starts() -> None:
    app = paste(open_plan(**MODEL), 'Traceback (most recent call last):\n  File "x.py", line 3, in f\n'
                "ValueError: kv-canary: pool_slot_count must be positive, got 0\n")  # fmt: skip
    text = html(app)
    assert "Likely causes, the likeliest first" in text
    assert "Will not start, 1 error" in text
    assert source(app, "pool_slot_count") == "error message"
    explained = next(key for key in keys(app) if key.startswith("explained."))
    checked(app.button(key=explained).click().run())
    # By hand: (18 GiB + 20 004 x 53 760 bytes) / 47 000 MiB = 0.41399, rounded up to three digits.
    assert field_text(app, "mem_fraction_static") == "0.414"
    fix = next(key for key in keys(app) if key.startswith("fix.") and key.endswith("pool_slot_count"))
    checked(app.button(key=fix).click().run())
    assert "Starts, with" in html(app)
    assert int(field_text(app, "pool_slot_count")) > 0


def test_an_accelerator_of_the_own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(OWN))
    monkeypatch.setenv(plan_environment.DEVICES_VARIABLE, str(path))
    app = open_plan()
    checked(app.selectbox(key="accelerator").set_value("Zebra Z9").run())
    assert field_text(app, "device_memory_bytes") == "61000MiB"
    assert source(app, "device_memory_bytes") == "Zebra Z9: its driver"
    assert "memory: its driver; bandwidth: its sheet" in html(app)


def test_the_accelerator_of_this_machine_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_environment, "accelerators", lambda: (("NVIDIA L40S", 45_589 << 20),))
    app = open_plan()
    assert "&#x27;NVIDIA L40S&#x27; is NVIDIA L40S" in html(app)
    checked(app.button(key="here.0").click().run())
    assert field_text(app, "device_memory_bytes") == str(45_589 << 20)
    assert source(app, "device_memory_bytes") == "NVIDIA L40S, as the driver of this machine gives it"


@pytest.mark.parametrize("content", ["{", '{"schema": 1}', '{"schema": 1, "devices": [{"name": "A"}]}'])
def test_an_own_list_that_cannot_be_read_says_so_and_the_page_stands(content: str) -> None:
    app = open_plan()
    checked(app.file_uploader(key="device_file").upload("mine.json", content.encode(), "application/json").run())
    assert "mine.json: device list:" in html(app)


def test_a_missing_own_list_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plan_environment.DEVICES_VARIABLE, "/nowhere/devices.json")
    assert "KVCANARY_DEVICES=/nowhere/devices.json: No such file" in html(open_plan())


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"model_path": "org/heron-2b", "page_size": 8, "max_total_num_tokens": 54321, "status": "ready",
                           "internal_states": [{"effective_max_running_requests_per_dp": 37}]}).encode()  # fmt: skip
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def engine() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_fetching_is_off_and_says_how_to_allow_it() -> None:
    app = open_plan()
    assert "KVCANARY_FETCH_HOSTS=10.0.0.7:30000" in "\n".join(code.value for code in app.code)
    assert "fetch" not in keys(app)


def test_a_running_server_is_read_where_it_is_allowed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCANARY_FETCH_HOSTS", engine)
    app = open_plan()
    app.text_input(key="fetch_url").set_value("http://127.0.0.1:1/").run()
    checked(app.button(key="fetch").click().run())
    assert "is not among the allowed hosts" in html(app)
    app.text_input(key="fetch_url").set_value(f"http://{engine}").run()
    checked(app.button(key="fetch").click().run())
    assert "Not imported" not in html(app)
    assert (field_text(app, "pool_slot_count"), field_text(app, "req_to_token_pool_size"), field_text(app, "page_size")) == (
        "54321",
        "37",
        "8",
    )


def test_a_log_that_ends_in_an_error_does_not_read_as_a_start_until_something_is_changed() -> None:
    log = (
        "[2026-02-03 04:05:06] server_args=ServerArgs(model_path='org/wren-3b', context_length=6000, mem_fraction_static=0.88, page_size=1, "
        "cuda_graph_max_bs=96, max_running_requests=96)\n"
        "[2026-02-03 04:05:20] Capture cuda graph begin. This can take up to several minutes. avail mem=2.10 GB\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 0.40 GiB is free.\n"
    )
    app = paste(open_plan(), log)
    assert "Failed with these settings: Memory ran out while decode graphs were captured" in html(app)
    lower, half = (next(button for button in app.button if (button.key or "").endswith(f"oom_graph_capture.{n}")) for n in (0, 1))
    # (2.0 - 0.4) / 40 = 0.04 of the device.
    assert lower.label.replace("\u2060", "").startswith("set --mem-fraction-static to 0.84 or less")
    assert half.label.replace("\u2060", "") == "set --cuda-graph-max-bs-decode to 48, half of 96"
    checked(lower.click().run())
    assert field_text(app, "mem_fraction_static") == "0.84"
    assert "Failed with these settings" not in html(app)
    again = next(button for button in app.button if (button.key or "").endswith("oom_graph_capture.0"))
    assert again.label == lower.label, "the value does not move when it is taken over"
