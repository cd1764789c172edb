"""vLLM's start-up log: memory, KV blocks or tokens, and concurrency, in the wordings of its releases.

"GiB" is printed as such by newer releases and as "GB" by older ones. One figure per engine core; tensor-parallel workers of a core are merged
by the engine already, data-parallel cores are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvcanary.importers.log_records import Record

_F = r"-?\d+(?:\.\d+)?"
_COUNT = r"\d+(?:,\d{3})*"
_CONFIG = re.compile(r"LLM engine \(v?[\w.+]+\) with config: ")
_CONFIG_PAIR = re.compile(r"\b(\w{1,60})=('[^']{0,2000}'|\"[^\"]{0,2000}\"|[^\s,()]++)(?=[,)\s]|$)")
_CONFIG_NAMES = {
    "model": "model",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
}
_TOKENS = re.compile(rf"GPU KV cache size: ({_COUNT}) tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for ({_COUNT}) tokens per request: ({_F})x")
_BLOCKS = re.compile(rf"# (?:GPU|cuda|CUDA) blocks: ({_COUNT})(?:, # CPU blocks: ({_COUNT}))?")
_NUMBERS = (
    ("weights_gib", re.compile(rf"(?:Model loading took|model weights take|Loading model weights took) ({_F}) ?GiB")),
    ("weights_gb", re.compile(rf"(?:Loading model weights took|Model loading took) ({_F}) ?GB")),
    ("available_kv_gib", re.compile(rf"Available KV cache memory: ({_F}) ?GiB")),
    ("cuda_graph_mem_gib", re.compile(rf"Graph capturing finished in \S+ secs?, took ({_F}) ?GiB")),
    ("non_torch_gib", re.compile(rf"non_torch_memory takes ({_F}) ?GiB")),
    ("activation_peak_gib", re.compile(rf"PyTorch activation peak memory takes ({_F}) ?GiB")),
    ("kv_cache_gib", re.compile(rf"reserved for KV Cache is ({_F}) ?GiB")),
    ("free_gib", re.compile(rf"Initial free memory:? ({_F}) ?GiB")),
)
_USABLE = re.compile(rf"total_gpu_memory \(({_F}) ?GiB\) x gpu_memory_utilization \(({_F})\) = ({_F}) ?GiB")
_RESERVED = re.compile(rf"reserved ({_F}) ?GiB memory for KV Cache as specified by kv_cache_memory_bytes")
_BLOCK_SIZES = (1, 8, 16, 32, 48, 64, 96, 128, 256, 528, 544, 784, 1024)


def read_vllm_log(records: Iterable[Record]) -> tuple[dict[str, Any], dict[str, int]]:
    """Observed values under stable names, and the line each came from."""
    reader = _Reader()
    for record in records:
        reader.read(record)
    return reader.observed(), reader.lines


class _Reader:
    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        self.lines: dict[str, int] = {}
        self.processes: list[str] = []
        self.config: dict[str, Any] = {}
        self.source = ""

    def _put(self, name: str, value: Any, record: Record) -> None:
        self.values.setdefault(name, {}).setdefault(record.process, value)
        self.lines.setdefault(name, record.line)

    def read(self, record: Record) -> None:
        if record.process and record.process not in self.processes:
            self.processes.append(record.process)
        text = record.text
        if (match := _CONFIG.search(text)) and not self.config:
            self._config(text[match.end() :], record)
        if match := _TOKENS.search(text):
            self._put("gpu_kv_tokens", _count(match[1]), record)
        if match := _CONCURRENCY.search(text):
            self._put("max_model_len", _count(match[1]), record)
            self._put("max_concurrency", float(match[2]), record)
        if match := _BLOCKS.search(text):
            self._put("gpu_blocks", _count(match[1]), record)
            if match[2]:
                self._put("cpu_blocks", _count(match[2]), record)
        for name, pattern in _NUMBERS:
            if match := pattern.search(text):
                self._put(name, float(match[1]), record)
        if match := _USABLE.search(text):
            for name, value in zip(("total_gpu_gib", "gpu_memory_utilization", "usable_gib"), match.groups(), strict=True):
                self._put(name, float(value), record)
        if match := _RESERVED.search(text):
            self._put("available_kv_gib", float(match[1]), record)
            self.source = "kv_cache_memory_bytes"

    def _config(self, text: str, record: Record) -> None:
        for name, value in _CONFIG_PAIR.findall(text):
            if name in _CONFIG_NAMES:
                self.config.setdefault(_CONFIG_NAMES[name], _typed(value))
        self.lines["config"] = record.line

    def observed(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.processes:
            out["engine_core"] = next((name for name in self.processes if name.startswith("EngineCore")), None)
            workers = sorted(name for name in self.processes if name.startswith("Worker"))
            if workers:
                out["workers"] = workers
        if self.config:
            out["config"] = self.config
        for name, by_process in self.values.items():
            self._spread(out, name, list(by_process.values()))
        if isinstance(self.config.get("max_model_len"), int):
            out.setdefault("max_model_len", self.config["max_model_len"])
        if self.source:
            out["kv_memory_source"] = self.source
        self._cores(out)
        self._blocks(out)
        return out

    @staticmethod
    def _spread(out: dict[str, Any], name: str, values: list[Any]) -> None:
        """Processes that disagree about memory are workers of one engine: the smallest decides."""
        agree = all(value == values[0] for value in values)
        if agree or name not in ("gpu_kv_tokens", "max_concurrency"):
            out[name] = values[0] if agree else None
        if len(values) > 1 and name.endswith("_gib"):
            out[f"{name}_min"] = min(values)

    def _cores(self, out: dict[str, Any]) -> None:
        """Data-parallel engine cores have a cache each."""
        tokens = self.values.get("gpu_kv_tokens", {})
        if len(tokens) > 1:
            out["engines"] = len(tokens)
            out["gpu_kv_tokens"] = list(tokens.values())
            out["gpu_kv_tokens_sum"] = sum(tokens.values())
            out["max_concurrency"] = list(self.values.get("max_concurrency", {}).values())

    def _blocks(self, out: dict[str, Any]) -> None:
        """Tokens from blocks: the block size follows from tokens beside them, or from concurrency x length."""
        blocks, tokens = out.get("gpu_blocks"), out.get("gpu_kv_tokens")
        if not isinstance(blocks, int) or blocks < 1:
            return
        if isinstance(tokens, int) and tokens % blocks == 0:
            out["block_size"] = tokens // blocks
            shared = {name: out[name] for name in ("max_concurrency", "max_model_len") if out.get(name) is not None}
            out["formats"] = [{"gpu_blocks": blocks, **shared}, {"gpu_kv_tokens": tokens, **shared}]
            return
        length, concurrency = out.get("max_model_len"), out.get("max_concurrency")
        if isinstance(length, int) and isinstance(concurrency, float):
            exact = concurrency * length / blocks
            size = min(_BLOCK_SIZES, key=lambda known: abs(known - exact))
            # Concurrency is printed with two digits.
            if abs(size - exact) <= 0.006 * length / blocks + 1e-9:
                out["block_size"] = size
                out["kv_capacity_tokens"] = blocks * size


def _count(text: str) -> int:
    return int(text.replace(",", "")[:18])


def _typed(value: str) -> Any:
    if value[0] in "'\"":
        return value[1:-1]
    words = {"True": True, "False": False, "None": None}
    if value in words:
        return words[value]
    return int(value) if value.isdigit() and len(value) < 19 else value
