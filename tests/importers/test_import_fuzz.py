"""No text makes an importer raise anything but its own error, and what we write ourselves is read back as it was.

Short by default; `--hypothesis-profile=long` runs each test 20 000 times.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.config.launch_flags import sglang_flags
from kvcanary.config.settings import FIELDS, Settings
from kvcanary.errors import ImportTextError
from kvcanary.importers.detect import merge, read_bytes, read_text
from kvcanary.importers.result import ImportResult
from tests.importers.samples import ALL

often = settings(deadline=None, max_examples=max(200, settings().max_examples))

# What readers look for: a text made of these reaches further than letters do.
TOKENS = st.sampled_from(
    [
        "python -m sglang.launch_server ", "sglang serve ", "vllm serve ", "docker run ", "--tp ", "--model-path ", "--page-size=",
        "--kv-canary ", "-tp ", "--speculative-num", "--cuda-graph-bs-decode ", "--json-model-override-args ",
        "--no-enable-prefix-caching ", "-O3 ", "1", "-1", "2.5", "8k", "None", "null", " ", "\n", "\\\n", "\t", "'", '"', "`", "```\n",
        "$", "${", "$(", "$((", "))", ")", "}", "{", "{{", "}}", "[", "]", "(", "=", ":", ",", "|", ">", "<<<<<<< a\n", "=======\n",
        ">>>>>>> b\n", "#", "- ", "- - ", "args:", "command: ", "env:\n", "A=", "A=(", "+=", "if x:\n    ", "for a in b; do\n", "f'''",
        '"""', "ServerArgs(", "server_args=", "{'model_path': ", "[2031-02-03 04:05:06 TP0] ", "[2031-02-03 04:05:06 DP1 TP3] ",
        "KV Cache is allocated. #tokens: ", ", K size: 1.0 GB, V size: 1.0 GB", "max_total_num_tokens=",
        "install_canary: launch_capacities=CanaryLaunchCapacities(per_forward_verify_capacity=", "attach_canary_buffers: kinds=[",
        "Load weight end. avail mem=1.00 GB, mem usage=2.00 GB", "Capture cuda graph begin", "bs [1, 2", "Error: ",
        "CUDA out of memory. Tried to allocate 1.0 GiB", "kv-canary: pool_slot_count must be positive, got 0",
        "GPU KV cache size: 1,000 tokens", "# GPU blocks: 7, # CPU blocks: 3", "Maximum concurrency for 10 tokens per request: 0.50x",
        "(EngineCore_DP0 pid=1) INFO 02-03 04:05:06 ", "(Worker_TP0 pid=2) ", '{"log": "', '"}', '"internal_states": [', '"tp_size": ',
        "\x1b[31m", "\r", "\u2013", "\u201c", "\u00a0", "\ufeff", "9" * 30, "\0", "\ud800", "é", "HF_TOKEN=", "--api-key ",
    ]
)  # fmt: skip

KEYS = (
    "schema", "settings", "fields", "spec", "value", "model_path", "tp_size", "dp_size", "enable_dp_attention", "page_size",
    "max_running_requests", "chunked_prefill_size", "max_total_tokens", "context_length", "cuda_graph_config", "cuda_graph_bs", "decode",
    "prefill", "max_bs", "bs", "backend", "json_model_override_args", "text_config", "internal_states", "memory_usage", "weight",
    "graph", "token_capacity", "max_total_num_tokens", "effective_max_running_requests_per_dp", "max_req_input_len", "status",
    "architectures", "model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "layer_types", "sliding_window", "kv_lora_rank", "quantization_config", "torch_dtype", "metadata", "total_size", "weight_map",
    "pool_slot_count", "ring_capacity", "mode", "speculative_num_draft_tokens", "pool", "canary",
)  # fmt: skip

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.integers(-1, 9) | st.floats() | st.text(max_size=8) | st.sampled_from(["auto", "log"])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), inner, max_size=5),
    max_leaves=12,
)


def read(text: str | bytes) -> ImportResult | None:
    """A reading that can be written out, or None for a text that was refused in one line."""
    said = ""
    try:
        result = read_bytes(text) if isinstance(text, bytes) else read_text(text)
    except ImportTextError as error:
        said = str(error)
    if said:
        assert "\n" not in said
        return None
    json.dumps(result.to_dict())
    assert set(result.fields) <= set(FIELDS)
    return result


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A sample, or two of them, cut, doubled, shuffled and spoilt in a few places."""
    text = draw(st.sampled_from(ALL))
    for _ in range(draw(st.integers(1, 5))):
        at, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        kind = draw(st.sampled_from(["cut", "drop", "double", "insert", "digit", "join", "lines"]))
        if kind == "cut":
            text = text[:end]
        elif kind == "drop":
            text = text[:at] + text[min(end, at + 40) :]
        elif kind == "double":
            text = text[:at] + text[at:end] * 2 + text[end:]
        elif kind == "insert":
            text = text[:at] + draw(TOKENS) + text[at:]
        elif kind == "digit":
            text = text[:at] + draw(st.sampled_from("0123456789-.,")) + text[at + 1 :]
        elif kind == "join":
            text = text[:at] + draw(st.sampled_from(["", "\n", " "])) + draw(st.sampled_from(ALL))
        else:
            text = "\n".join(draw(st.permutations(text.split("\n")[:12])))
    return text


@often
@given(st.binary(max_size=300))
def test_bytes(data: bytes) -> None:
    read(data)


@often
@given(st.lists(TOKENS | st.text(max_size=4), max_size=40).map("".join))
def test_words_that_readers_look_for(text: str) -> None:
    read(text)


@often
@given(mutated())
def test_spoilt_texts(text: str) -> None:
    read(text)


@often
@given(mutated(), st.integers(0, 2**31), st.binary(max_size=4))
def test_spoilt_bytes(text: str, at: int, extra: bytes) -> None:
    data = text.encode("utf-8", "surrogatepass")
    at %= len(data) + 1
    read(data[:at] + extra + data[at:])


@often
@given(st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=12))
def test_documents_with_any_values(document: dict[str, Any]) -> None:
    read(json.dumps(document))


@often
@given(st.sampled_from(ALL), st.data())
def test_known_documents_with_a_spoilt_value(text: str, data: st.DataObject) -> None:
    try:
        document = json.loads(text)
    except ValueError:
        return
    document[data.draw(st.sampled_from([*document, *KEYS]))] = data.draw(JSON)
    read(json.dumps(document))


@often
@given(st.lists(mutated(), min_size=1, max_size=3))
def test_readings_put_together(texts: list[str]) -> None:
    results = [result for result in map(read, texts) if result is not None]
    if not results:
        return
    try:
        both = merge(results)
    except ImportTextError:
        return
    json.dumps(both.to_dict())
    for name in both.fields:
        assert any(name in result.fields or name in dict.fromkeys(entry.name for entry in result.conflicts) for result in results) or (
            both.kind is not results[0].kind
        )


def legal(name: str) -> st.SearchStrategy[Any]:
    """Values of a settings field that its parser takes."""
    spec = FIELDS[name]
    if spec.choices:
        values: st.SearchStrategy[Any] = st.sampled_from(spec.choices)
    else:
        values = {
            "switch": st.booleans(),
            "fraction": st.floats(0.01, 0.99),
            "text": st.sampled_from(["", "org/wren-9b", "a b", "é"]),
        }.get(spec.kind, st.integers(1, 10**6))
    return st.none() | values if spec.optional else values


@often
@given(st.fixed_dictionaries({}, optional={name: legal(name) for name in FIELDS}))
def test_settings_are_read_back_as_they_were(values: dict[str, Any]) -> None:
    whole = Settings.from_flat(values)
    for document in (whole.model_dump(), whole.to_flat(), {"schema": "kvcanary.plan", "version": 1, "settings": whole.to_flat()}):
        again = read_text(json.dumps(document)).settings_values()
        assert Settings.from_flat(again) == whole


@often
@given(
    st.fixed_dictionaries(
        {
            "dp_size": st.integers(1, 8),
            "enable_dp_attention": st.booleans(),
            "tp_size": st.sampled_from([8, 16]),
            "req_to_token_pool_size": st.integers(1, 500),
            "chunked_prefill_size": st.none() | st.integers(1, 9000),
            "page_size": st.sampled_from([1, 16]),
            "cuda_graph_max_bs": st.none() | st.integers(1, 500),
            "kv_dtype": st.sampled_from(["auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"]),
            "mem_fraction_static": st.floats(0.1, 0.99).map(lambda share: round(share, 3)),
        }
    )
)
def test_the_launch_command_is_read_back_rank_by_rank(values: dict[str, Any]) -> None:
    again = {name: entry.value for name, entry in read_text(sglang_flags(Settings.from_flat(values))).fields.items()}
    default = Settings().to_flat()
    chunk = values["chunked_prefill_size"]
    for name, value in {**values, "chunked_prefill_size": -1 if chunk is None else chunk}.items():
        if name == "cuda_graph_max_bs" and value is None:
            assert again["cuda_graph_backend_decode"] == "disabled"
        else:
            assert again.get(name, default[name]) == value, name
