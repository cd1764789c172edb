"""SGLang's start-up log: what it states about pools, memory, graphs, the canary and the requests it admits, per rank.

"GB" in SGLang's lines is GiB. TP ranks of one DP rank hold the same tokens, so their figures are compared and never added; each DP rank has
its own pool. What the text does not state is null, never a default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from kvcanary.importers.canary_install import read_attach, read_install
from kvcanary.importers.log_records import Record
from kvcanary.importers.server_log_summary import NO_RANK, READY_NAMES, Seen, summarise

_F = r"-?\d+(?:\.\d+)?"
_N = r"-?\d+"
_ALLOCATED = re.compile(
    rf"KV [Cc]ache (?P<what>is allocated|VA upper bound|allocated)\.? (?:dtype: (?P<dtype>[\w.]+), )?#tokens: (?P<tokens>{_N})"
    rf"(?:, K size: +(?P<k>{_F}) ?GB, V size: +(?P<v>{_F}) ?GB|, KV size: +(?P<kv>{_F}) ?GB)?"
)
_SIZING = re.compile(rf"available_bytes=({_N}).{{0,40}}?cell_size=({_N}), page_size=({_N}) -> max_total_num_tokens=({_N})")
_READY = re.compile(r"(?:^|\] )max_total_num_tokens=(?=-?\d)")
_PAIR = re.compile(rf"\b(\w{{1,60}})=({_F})(?= ?GB|,|\s|$|\))")
_AVAIL = re.compile(rf"avail mem=({_F}) ?GB")
_USAGE = re.compile(rf"mem usage=({_F}) ?GB")
_BATCH_LIST = re.compile(r"\bbs ?=? ?\[([\d, ]*)\]")
_CAPTURE = re.compile(
    r"Capture (?:(?P<runner>target decode|target verify|decode) CUDA graph|cuda graph) (?P<step>begin|end|bs)", re.IGNORECASE
)
_TREE = re.compile(r"Tree cache initialized:.{0,300}?\bimpl=(\w+)")
_SWA_POOL = re.compile(rf"SWAKVPool mem usage: ({_F}) ?GB, swa size: ({_N}), full size: ({_N})")
_SWA_TOKENS = re.compile(rf"full_layer_tokens=({_N}), swa_layer_tokens=({_N})")
_MAMBA = re.compile(rf"max_mamba_cache_size: ({_N}), conv_state size: ({_F}) ?GB, ssm_state size: ({_F}) ?GB")
_MAMBA_CAP = re.compile(
    rf"max_running_requests is capped to ({_N}) by the mamba state cache\s*\(max_mamba_cache_size=({_N}), ({_N}) state slots"
)
_PROFILE = re.compile(rf"available_gpu_memory=({_F}) ?GB, total_gpu_memory=({_F}) ?GB, mem_fraction_static=({_F}), rest_memory=({_F}) ?GB")
_DSV4 = re.compile(rf"bytes_per_full_token=({_F}), available_bytes=({_F}) ?GB, full_token=({_N})")
_DSV4_POOLS = re.compile(rf"DSV4 pool sizes: full=({_N}), swa=({_N})")
_POST_TOKENS = re.compile(rf"Post-capture KV sizing: max_total_num_tokens=({_N}), free memory=({_F}) ?GB")
_POST_REQUESTS = re.compile(rf"Post-capture KV sizing: max_running_requests ({_N}) -> ({_N})")
_POST_WORKSPACE = re.compile(rf"KV-canary per-forward workspace ({_F}) ?GB")
_LARGER = re.compile(rf"max_total_tokens=({_N}) is larger than the profiled value ({_N})")
_REDUCED = re.compile(rf"max_running_requests was reduced from the requested ({_N}) to ({_N})")
_DECODE = re.compile(rf"Decode batch[,.] #running-req: ({_N}), #token: ({_N}), token usage: ({_F})")
_QUEUE = re.compile(rf"#queue-req: ({_N})")
_HOST_TIER = re.compile(rf"Allocating ({_F}) ?GB host memory for hierarchical KV cache")
_POOL_DUMP = re.compile(
    rf"max_total_num_tokens=({_N}), (?:self\.)?available_size=({_N}), (?:self\.)?evictable_size=({_N}), (?:self\.)?protected_size=({_N})"
)
_NUM_TOKENS = re.compile(rf"num_tokens_per_req=({_N})")

# As the engine prints them, or the value alone as somebody copied it.
PRINTED_ARGUMENTS = re.compile(r"server_args=(?P<printed>\{|ServerArgs\()|^\s*(?P<alone>\{'model_path': |ServerArgs\(model_path=)")


def read_server_log(records: Iterable[Record], ranks: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, int]]:
    """Observed values under stable names, and the line each came from. `ranks` are labels of lines that are not among the records."""
    reader = _Reader()
    for record in records:
        reader.read(record)
    return summarise(reader.seen, ranks), reader.seen.lines


class _Reader:
    def __init__(self) -> None:
        self.seen = Seen()
        self.rank, self.line = NO_RANK, 0

    def read(self, record: Record) -> None:
        self.rank, self.line = record.rank or NO_RANK, record.line
        if record.rank is not None:
            self.seen.ranks.add(self.rank)
        text = record.text
        if self._server_args(text):
            return
        for reader in (self._weights, self._allocation, self._canary, self._graphs, self._limits, self._memory, self._running):
            reader(text)
            # A line that was broken at a blank reads right only with the blank.
            if record.spaced != text:
                reader(record.spaced)
        self.seen.fired_up = self.seen.fired_up or "fired up and ready to roll" in text

    def _put(self, name: str, value: Any) -> None:
        """First statement of a rank wins; the second is the draft runner's or the broken line read again."""
        if value is not None:
            self.seen.per_rank.setdefault(name, {}).setdefault(self.rank, value)
            self.seen.lines.setdefault(name, self.line)

    def _say(self, name: str, value: Any) -> None:
        """A value that belongs to the text and not to a rank; the first one stays."""
        if self.seen.once.setdefault(name, value) is value:
            self.seen.lines.setdefault(name, self.line)

    def _server_args(self, text: str) -> bool:
        """Keep the last printed arguments; they are long, and a log of many starts has many."""
        match = PRINTED_ARGUMENTS.search(text)
        if match is None:
            return False
        self.seen.printed = text[match.start(match.lastgroup or 0) :]
        self.seen.lines["server_args"] = self.line
        return True

    def _weights(self, text: str) -> None:
        avail, usage = _AVAIL.search(text), _USAGE.search(text)
        if "Load weight begin" in text and avail:
            self._put("load_weight_begin_avail_gb", float(avail[1]))
        elif "Load weight end" in text and avail:
            # Weights that come after a pool are the draft model's, also where the text begins behind the target's line.
            later = any(pool["rank"] == self.rank for pool in self.seen.pools) or self.rank in self.seen.installs
            if later or self.rank in self.seen.per_rank.get("load_weight_avail_gb", {}):
                self._put("draft_weight_mem_gb", float(usage[1]) if usage else None)
                self.seen.draft_ranks.add(self.rank)
                return
            self._put("load_weight_avail_gb", float(avail[1]))
            self._put("load_weight_mem_gb", float(usage[1]) if usage else None)
        elif "Memory pool end" in text and avail:
            self._put("memory_pool_end_avail_gb", float(avail[1]))

    def _allocation(self, text: str) -> None:
        if match := _SIZING.search(text):
            names = ("available_bytes", "cell_size", "page_size", "max_total_num_tokens")
            self._say("kv_pool_sizing", dict(zip(names, map(int, match.groups()), strict=True)))
        match = _ALLOCATED.search(text)
        if match is None:
            return
        tokens = int(match["tokens"])
        self._put("kv_cache_dtype", match["dtype"])
        if match["what"] == "VA upper bound":
            self._put("kv_tokens_upper_bound", tokens)
        elif "Post-capture" in text:
            self._put("post_capture_tokens", tokens)
            self._say_post("kv_size_gb", match["kv"] and float(match["kv"]))
        else:
            sizes = {"k_size_gb": match["k"], "v_size_gb": match["v"], "kv_size_gb": match["kv"]}
            pool = {"tokens": tokens, **{name: float(size) for name, size in sizes.items() if size is not None}}
            # A broken line is read twice, glued and joined by blanks; the first reading holds.
            if not any(known["line"] == self.line and known["rank"] == self.rank for known in self.seen.pools[-4:]):
                self.seen.pools.append({**pool, "rank": self.rank, "line": self.line})
                self.seen.lines.setdefault("kv_tokens", self.line)

    def _say_post(self, name: str, value: Any) -> None:
        if value is not None:
            self.seen.once.setdefault("post_capture", {}).setdefault(name, value)
            self.seen.lines.setdefault("post_capture", self.line)

    def _canary(self, text: str) -> None:
        if "attach_canary_buffers" in text and (attach := read_attach(text)):
            offset = attach.pop("offset", None)
            if offset is not None and offset not in self.seen.offsets:
                self.seen.offsets.append(offset)
            if offset:
                self.seen.draft_ranks.add(self.rank)
            for name, value in attach.items():
                self.seen.canary.setdefault(name, value)
            self.seen.lines.setdefault("canary", self.line)
        if "install_canary" in text and (install := read_install(text)):
            self.seen.installs.setdefault(self.rank, set()).add(self.line)
            self._put("verify_capacity", install.get("verify_capacity"))
            if "verify_capacity" not in self.seen.canary:
                self.seen.canary.update(install)
                self.seen.lines["canary"] = self.line

    def _graphs(self, text: str) -> None:
        if "Disable prefill CUDA graph" in text:
            self._say("prefill_graph", "disabled")
        match = _CAPTURE.search(text)
        if match is None:
            if tree := _TREE.search(text):
                self._say("tree_cache", tree[1])
            return
        if "draft" in text[: match.start()].lower() or "num tokens" in text[: match.end() + 12].lower():
            return
        if per_request := _NUM_TOKENS.search(text):
            self._say("num_tokens_per_req", int(per_request[1]))
        if batches := _BATCH_LIST.search(text):
            self._put("cuda_graph_bs", [int(size) for size in re.findall(_N, batches[1])])
        if match["step"].lower() == "end" and (usage := _USAGE.search(text)):
            self._put("cuda_graph_mem_gb", float(usage[1]))

    def _limits(self, text: str) -> None:
        if _READY.search(text) and not _POOL_DUMP.search(text):
            found = dict(_PAIR.findall(text))
            if any(entry["line"] == self.line for entry in self.seen.ready):
                return
            entry: dict[str, Any] = {"rank": self.rank, "line": self.line}
            for name, shown in (("max_total_num_tokens", "max_total_num_tokens"), *READY_NAMES.items()):
                if name in found:
                    entry[shown] = float(found[name]) if shown.endswith("_gb") else int(float(found[name]))
            self.seen.ready.append(entry)
            self.seen.lines.setdefault("max_total_num_tokens", self.line)
        if match := _LARGER.search(text):
            self._say("requested_max_total_tokens", int(match[1]))
            self._say("profiled_max_total_tokens", int(match[2]))
        if match := _REDUCED.search(text):
            self._say("requested_max_running_requests", int(match[1]))
            self._say("warning", "max_running_requests_reduced")
        if match := _MAMBA.search(text):
            self._say("mamba_cache_size", int(match[1]))
            self._say("mamba_conv_gb", float(match[2]))
            self._say("mamba_ssm_gb", float(match[3]))
        if match := _MAMBA_CAP.search(text):
            self._say("mamba_slots_per_request", int(match[3]))
            self._say("warning", "max_running_requests_capped_by_mamba")

    def _memory(self, text: str) -> None:
        if match := _SWA_TOKENS.search(text):
            full, window = int(match[1]), int(match[2])
            if "Post-capture" in text:
                self._say_post("full_layer_tokens", full)
                self._say_post("swa_layer_tokens", window)
            else:
                self._say("full_layer_tokens", full)
                self._say("swa_layer_tokens", window)
        if match := _SWA_POOL.search(text):
            self._say("swakvpool_mem_gb", float(match[1]))
            self._say("swa_layer_tokens", int(match[2]))
            self._say("full_layer_tokens", int(match[3]))
        if match := _PROFILE.search(text):
            names = ("available_gpu_memory_gb", "total_gpu_memory_gb", "mem_fraction_static", "rest_memory_gb")
            self._say("memory_profiling", dict(zip(names, map(float, match.groups()), strict=True)))
        if match := _DSV4.search(text):
            self._say("dsv4", {"bytes_per_full_token": float(match[1]), "available_gb": float(match[2]), "full_token": int(match[3])})
        if match := _DSV4_POOLS.search(text):
            self._say("full_layer_tokens", int(match[1]))
            self._say("swa_layer_tokens", int(match[2]))
        if match := _POST_TOKENS.search(text):
            self._say_post("max_total_num_tokens", int(match[1]))
            self._say_post("free_gb", float(match[2]))
        if match := _POST_REQUESTS.search(text):
            self._say_post("max_running_requests_before", int(match[1]))
            self._say_post("max_running_requests_after", int(match[2]))
        if match := _POST_WORKSPACE.search(text):
            self._say_post("canary_workspace_gb", float(match[1]))

    def _running(self, text: str) -> None:
        if match := _DECODE.search(text):
            queue = _QUEUE.search(text)
            running = {"running_req": int(match[1]), "token": int(match[2]), "token_usage": float(match[3])}
            self.seen.once.update(running)
            if queue:
                self.seen.once["queue_req"] = int(queue[1])
        if match := _HOST_TIER.search(text):
            self._put("hicache_host_gb_per_rank", float(match[1]))
        if match := _POOL_DUMP.search(text):
            total, available, evictable, protected = map(int, match.groups())
            self._say("max_total_num_tokens", total)
            self.seen.lines.setdefault("pool_statistics", self.line)
            self._say("available_size", available)
            self._say("evictable_size", evictable)
            self._say("protected_size", protected)
            self._say("held", total - available - evictable - protected)
