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
from kvcanary.importers.repr_text import read_call, read_dict
from kvcanary.importers.secrets import is_secret

NO_RANK = "(none)"
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

# Names that a log without the line has as null: what a start-up log usually states.
_CORE = (
    "load_weight_avail_gb", "load_weight_mem_gb", "kv_cache_dtype", "kv_tokens", "k_size_gb", "v_size_gb", "memory_pool_end_avail_gb",
    "cuda_graph_bs_count", "cuda_graph_bs_max", "cuda_graph_mem_gb", "max_total_num_tokens", "chunked_prefill_size", "max_prefill_tokens",
    "max_running_requests", "context_len", "available_gpu_mem_gb",
)  # fmt: skip
_READY_NAMES = {
    "chunked_prefill_size": "chunked_prefill_size",
    "max_prefill_tokens": "max_prefill_tokens",
    "max_running_requests": "max_running_requests",
    "context_len": "context_len",
    "available_gpu_mem": "available_gpu_mem_gb",
}


def read_server_log(records: Iterable[Record], ranks: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, int]]:
    """Observed values under stable names, and the line each came from. `ranks` are labels of lines that are not among the records."""
    reader = _Reader()
    for record in records:
        reader.read(record)
    return reader.observed(ranks), reader.lines


class _Reader:
    def __init__(self) -> None:
        self.ranks: set[str] = set()
        self.per_rank: dict[str, dict[str, Any]] = {}
        self.once: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.pools: list[dict[str, Any]] = []
        self.ready: list[dict[str, Any]] = []
        self.canary: dict[str, Any] = {}
        self.installs: dict[str, set[int]] = {}
        self.offsets: list[int] = []
        self.draft_ranks: set[str] = set()
        self.fired_up = False
        self.printed = ""
        self.rank, self.line = NO_RANK, 0

    def read(self, record: Record) -> None:
        self.rank, self.line = record.rank or NO_RANK, record.line
        if record.rank is not None:
            self.ranks.add(self.rank)
        text = record.text
        if self._server_args(text):
            return
        for reader in (self._weights, self._allocation, self._canary, self._graphs, self._limits, self._memory, self._running):
            reader(text)
            # A line that was broken at a blank reads right only with the blank.
            if record.spaced != text:
                reader(record.spaced)
        self.fired_up = self.fired_up or "fired up and ready to roll" in text

    def _put(self, name: str, value: Any) -> None:
        """First statement of a rank wins; the second is the draft runner's or the broken line read again."""
        if value is not None:
            self.per_rank.setdefault(name, {}).setdefault(self.rank, value)
            self.lines.setdefault(name, self.line)

    def _say(self, name: str, value: Any) -> None:
        """A value that belongs to the text and not to a rank; the first one stays."""
        if self.once.setdefault(name, value) is value:
            self.lines.setdefault(name, self.line)

    def _server_args(self, text: str) -> bool:
        """Keep the last printed arguments; they are long, and a log of many starts has many."""
        match = PRINTED_ARGUMENTS.search(text)
        if match is None:
            return False
        self.printed = text[match.start(match.lastgroup or 0) :]
        self.lines["server_args"] = self.line
        return True

    def _weights(self, text: str) -> None:
        avail, usage = _AVAIL.search(text), _USAGE.search(text)
        if "Load weight begin" in text and avail:
            self._put("load_weight_begin_avail_gb", float(avail[1]))
        elif "Load weight end" in text and avail:
            # Weights that come after a pool are the draft model's, also where the text begins behind the target's line.
            later = any(pool["rank"] == self.rank for pool in self.pools) or self.rank in self.installs
            if later or self.rank in self.per_rank.get("load_weight_avail_gb", {}):
                self._put("draft_weight_mem_gb", float(usage[1]) if usage else None)
                self.draft_ranks.add(self.rank)
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
            if not any(known["line"] == self.line and known["rank"] == self.rank for known in self.pools[-4:]):
                self.pools.append({**pool, "rank": self.rank, "line": self.line})
                self.lines.setdefault("kv_tokens", self.line)

    def _say_post(self, name: str, value: Any) -> None:
        if value is not None:
            self.once.setdefault("post_capture", {}).setdefault(name, value)
            self.lines.setdefault("post_capture", self.line)

    def _canary(self, text: str) -> None:
        if "attach_canary_buffers" in text and (attach := read_attach(text)):
            offset = attach.pop("offset", None)
            if offset is not None and offset not in self.offsets:
                self.offsets.append(offset)
            if offset:
                self.draft_ranks.add(self.rank)
            for name, value in attach.items():
                self.canary.setdefault(name, value)
            self.lines.setdefault("canary", self.line)
        if "install_canary" in text and (install := read_install(text)):
            self.installs.setdefault(self.rank, set()).add(self.line)
            self._put("verify_capacity", install.get("verify_capacity"))
            if "verify_capacity" not in self.canary:
                self.canary.update(install)
                self.lines["canary"] = self.line

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
            if any(entry["line"] == self.line for entry in self.ready):
                return
            entry: dict[str, Any] = {"rank": self.rank, "line": self.line}
            for name, shown in (("max_total_num_tokens", "max_total_num_tokens"), *_READY_NAMES.items()):
                if name in found:
                    entry[shown] = float(found[name]) if shown.endswith("_gb") else int(float(found[name]))
            self.ready.append(entry)
            self.lines.setdefault("max_total_num_tokens", self.line)
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
            self.once.update(running)
            if queue:
                self.once["queue_req"] = int(queue[1])
        if match := _HOST_TIER.search(text):
            self._put("hicache_host_gb_per_rank", float(match[1]))
        if match := _POOL_DUMP.search(text):
            total, available, evictable, protected = map(int, match.groups())
            self._say("max_total_num_tokens", total)
            self.lines.setdefault("pool_statistics", self.line)
            self._say("available_size", available)
            self._say("evictable_size", evictable)
            self._say("protected_size", protected)
            self._say("held", total - available - evictable - protected)

    def observed(self, ranks: Sequence[str]) -> dict[str, Any]:
        self.ranks.update(ranks)
        out: dict[str, Any] = {}
        if len(self.ranks) > 2:
            # With several ranks the bare lines are the main process's, which has no pool of its own.
            self.ranks.discard(NO_RANK)
        if self.ranks:
            out["ranks"] = sorted(self.ranks, key=rank_key)
        if self.printed:
            fields = read_dict(self.printed, 0) if self.printed[0] == "{" else read_call(self.printed, len("ServerArgs("))
            out["server_args"] = server_args_view(fields)
        self._ready_values(out)
        self._pools(out)
        for name, by_rank in self.per_rank.items():
            if name != "verify_capacity":
                _spread(out, name, by_rank)
        self._canary_values(out)
        if isinstance(batches := out.get("cuda_graph_bs"), list):
            out["cuda_graph_bs_count"], out["cuda_graph_bs_max"] = len(batches), max(batches, default=None)
        for name, value in self.once.items():
            out.setdefault(name, value)
        if "post_capture_tokens" in out:
            out["kv_tokens"] = out.pop("post_capture_tokens")
        out["ready"] = True if self.fired_up else None if self.ready else False
        if out.get("warning") == "max_running_requests_capped_by_mamba":
            out.setdefault("mamba_cache_size", None)
        return {**dict.fromkeys(_CORE), **out}

    def _ready_values(self, out: dict[str, Any]) -> None:
        values = [entry["max_total_num_tokens"] for entry in self.ready if "max_total_num_tokens" in entry]
        labels = [entry["rank"] for entry in self.ready]
        if len(set(labels)) < len(labels) and len(set(values)) > 1:
            # One rank gives two different pools: two servers, or two starts, in one paste.
            out["max_total_num_tokens_values"] = values
            requests = [entry["max_running_requests"] for entry in self.ready if "max_running_requests" in entry]
            out["max_running_requests_values"] = requests
            for name in ("chunked_prefill_size", "max_prefill_tokens", "context_len", "available_gpu_mem_gb"):
                distinct = {entry[name] for entry in self.ready if name in entry}
                if len(distinct) == 1:
                    out[name] = distinct.pop()
            return
        for name in ("max_total_num_tokens", *_READY_NAMES.values()):
            by_rank = {entry["rank"]: entry[name] for entry in self.ready if name in entry}
            if by_rank:
                _spread(out, name, by_rank)
        if len(set(labels)) > 1:
            keys = ("rank", "max_total_num_tokens", "max_running_requests")
            out["lines"] = sorted(
                ({key: entry.get(key) for key in keys} for entry in self.ready), key=lambda entry: rank_key(str(entry["rank"]))
            )
            self._aggregate(out)

    def _aggregate(self, out: dict[str, Any]) -> None:
        """Sums over data-parallel ranks, each counted once."""
        pools: dict[str, dict[str, Any]] = {}
        for entry in self.ready:
            if match := re.search(r"\bDP(\d+)", entry["rank"]):
                pools.setdefault(match[1], entry)
        if len(pools) > 1:
            out["aggregate_tokens"] = sum(entry.get("max_total_num_tokens", 0) for entry in pools.values())
            out["aggregate_running_requests"] = sum(entry.get("max_running_requests", 0) for entry in pools.values())

    def _pools(self, out: dict[str, Any]) -> None:
        by_rank: dict[str, list[dict[str, Any]]] = {}
        for pool in self.pools:
            by_rank.setdefault(pool["rank"], []).append(pool)
        if not by_rank:
            return
        window, full = self.once.get("swa_layer_tokens"), self.once.get("full_layer_tokens")
        if any(len(pools) > 1 for pools in by_rank.values()):
            # Ranks of one server list the same pools; pools of other servers have no rank in common.
            several = [pools for pools in by_rank.values() if len(pools) > 1]
            alike = all([_bare(pool) for pool in pools] == [_bare(pool) for pool in several[0]] for pools in by_rank.values())
            listed = several[0] if alike else self.pools
            kinds = self._kinds(listed, window, full)
            out["kv_pools"] = [{**_bare(pool), **({"kind": kind} if kind else {})} for pool, kind in zip(listed, kinds, strict=True)]
            mains = {pools[0]["rank"]: main for pools in by_rank.values() if (main := self._main(pools, window, full)) is not None}
        else:
            mains = {rank: pools[0] for rank, pools in by_rank.items()}
        for name, key in (("kv_tokens", "tokens"), ("k_size_gb", "k_size_gb"), ("v_size_gb", "v_size_gb"), ("kv_size_gb", "kv_size_gb")):
            values = {rank: pool[key] for rank, pool in mains.items() if key in pool}
            if values:
                _spread(out, name, values)

    def _kinds(self, pools: list[dict[str, Any]], window: int | None, full: int | None) -> list[str]:
        if window is not None and full is not None and window != full:
            return ["swa" if pool["tokens"] == window else "full" if pool["tokens"] == full else "" for pool in pools]
        if pools[0]["rank"] in self.draft_ranks and len({pool["rank"] for pool in pools}) == 1:
            return ["target", *["draft"] * (len(pools) - 1)]
        return [""] * len(pools)

    def _main(self, pools: list[dict[str, Any]], window: int | None, full: int | None) -> dict[str, Any] | None:
        """The pool that limits a rank: the full one beside a window pool, the target's beside the draft's; None where nothing tells."""
        kinds = self._kinds(pools, window, full)
        for wanted in ("full", "target"):
            if wanted in kinds:
                return pools[kinds.index(wanted)]
        return pools[0] if len(pools) == 1 or len({pool["tokens"] for pool in pools}) == 1 else None

    def _canary_values(self, out: dict[str, Any]) -> None:
        if not self.canary:
            return
        out["canary"] = dict(self.canary)
        if self.installs:
            out["canary_installs"] = max(map(len, self.installs.values()))
        if self.offsets:
            out["canary_token_offsets"] = self.offsets
        verify = self.per_rank.get("verify_capacity", {})
        if verify:
            _spread(out, "installed_pool_slot_count", {rank: value // 3 for rank, value in verify.items()})


def _bare(pool: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in pool.items() if name not in ("rank", "line")}


def _spread(out: dict[str, Any], name: str, by_rank: dict[str, Any]) -> None:
    """One value where all ranks agree; else null, the smallest, and all of them."""
    values = list(by_rank.values())
    agree = all(value == values[0] for value in values)
    out[name] = values[0] if agree else None
    if len(values) > 1 and all(isinstance(value, int | float) for value in values):
        out[f"{name}_min"] = min(values)
    if not agree:
        out[f"{name}_by_rank"] = dict(sorted(by_rank.items(), key=lambda entry: rank_key(entry[0])))


def rank_key(label: str) -> tuple[Any, ...]:
    """Sorts PP0 TP2 before PP0 TP11, and lines without a rank first."""
    if label == NO_RANK:
        return ()
    return tuple((word.rstrip("0123456789"), int(re.sub(r"\D", "", word)[:9] or 0)) for word in label.split())


def server_args_view(fields: dict[str, Any]) -> dict[str, Any]:
    """Printed arguments without secrets; the two phases of a nested graph configuration also under flat names."""
    view = {name: value for name, value in fields.items() if not is_secret(name)}
    config = view.get("cuda_graph_config")
    for phase in ("decode", "prefill"):
        inner = config.get(phase) if isinstance(config, dict) else None
        if isinstance(inner, dict):
            view.update({f"cuda_graph_{phase}_{key}": inner[key] for key in ("max_bs", "backend", "bs") if key in inner})
    return view
