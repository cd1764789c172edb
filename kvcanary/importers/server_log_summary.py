"""What the lines of a start-up log come to: ranks compared, pools told apart, data-parallel ranks added, missing facts as null."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcanary.importers.repr_text import read_call, read_dict
from kvcanary.importers.secrets import is_secret

NO_RANK = "(none)"

# Names that a log without the line has as null: what a start-up log usually states.
_CORE = (
    "load_weight_avail_gb", "load_weight_mem_gb", "kv_cache_dtype", "kv_tokens", "k_size_gb", "v_size_gb", "memory_pool_end_avail_gb",
    "cuda_graph_bs_count", "cuda_graph_bs_max", "cuda_graph_mem_gb", "max_total_num_tokens", "chunked_prefill_size", "max_prefill_tokens",
    "max_running_requests", "context_len", "available_gpu_mem_gb",
)  # fmt: skip
READY_NAMES = {
    "chunked_prefill_size": "chunked_prefill_size",
    "max_prefill_tokens": "max_prefill_tokens",
    "max_running_requests": "max_running_requests",
    "context_len": "context_len",
    "available_gpu_mem": "available_gpu_mem_gb",
}


@dataclass(slots=True)
class Seen:
    """What was read so far.

    per_rank: name to rank to value. once: what belongs to the text and not to a rank. lines: name to the line it came from. pools and ready
    are allocation and ready lines in order, installs the lines of install_canary by rank, printed the last printed arguments.
    """

    ranks: set[str] = field(default_factory=set)
    per_rank: dict[str, dict[str, Any]] = field(default_factory=dict)
    once: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    pools: list[dict[str, Any]] = field(default_factory=list)
    ready: list[dict[str, Any]] = field(default_factory=list)
    canary: dict[str, Any] = field(default_factory=dict)
    installs: dict[str, set[int]] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    draft_ranks: set[str] = field(default_factory=set)
    fired_up: bool = False
    printed: str = ""


def summarise(seen: Seen, ranks: Sequence[str]) -> dict[str, Any]:
    """Observed values under stable names. `ranks` are labels of lines that were not read."""
    seen.ranks.update(ranks)
    out: dict[str, Any] = {}
    if len(seen.ranks) > 2:
        # With several ranks the bare lines are the main process's, which has no pool of its own.
        seen.ranks.discard(NO_RANK)
    if seen.ranks:
        out["ranks"] = sorted(seen.ranks, key=rank_key)
    if seen.printed:
        fields = read_dict(seen.printed, 0) if seen.printed[0] == "{" else read_call(seen.printed, len("ServerArgs("))
        out["server_args"] = server_args_view(fields)
    _ready_values(seen, out)
    _pools(seen, out)
    for name, by_rank in seen.per_rank.items():
        if name != "verify_capacity":
            _spread(out, name, by_rank)
    _canary_values(seen, out)
    if isinstance(batches := out.get("cuda_graph_bs"), list):
        out["cuda_graph_bs_count"], out["cuda_graph_bs_max"] = len(batches), max(batches, default=None)
    for name, value in seen.once.items():
        out.setdefault(name, value)
    if "post_capture_tokens" in out:
        out["kv_tokens"] = out.pop("post_capture_tokens")
    out["ready"] = True if seen.fired_up else None if seen.ready else False
    if out.get("warning") == "max_running_requests_capped_by_mamba":
        out.setdefault("mamba_cache_size", None)
    return {**dict.fromkeys(_CORE), **out}


def _ready_values(seen: Seen, out: dict[str, Any]) -> None:
    values = [entry["max_total_num_tokens"] for entry in seen.ready if "max_total_num_tokens" in entry]
    labels = [entry["rank"] for entry in seen.ready]
    if len(set(labels)) < len(labels) and len(set(values)) > 1:
        # One rank gives two different pools: two servers, or two starts, in one paste.
        out["max_total_num_tokens_values"] = values
        requests = [entry["max_running_requests"] for entry in seen.ready if "max_running_requests" in entry]
        out["max_running_requests_values"] = requests
        for name in ("chunked_prefill_size", "max_prefill_tokens", "context_len", "available_gpu_mem_gb"):
            distinct = {entry[name] for entry in seen.ready if name in entry}
            if len(distinct) == 1:
                out[name] = distinct.pop()
        return
    for name in ("max_total_num_tokens", *READY_NAMES.values()):
        by_rank = {entry["rank"]: entry[name] for entry in seen.ready if name in entry}
        if by_rank:
            _spread(out, name, by_rank)
    if len(set(labels)) > 1:
        keys = ("rank", "max_total_num_tokens", "max_running_requests")
        out["lines"] = sorted(
            ({key: entry.get(key) for key in keys} for entry in seen.ready), key=lambda entry: rank_key(str(entry["rank"]))
        )
        _aggregate(seen, out)


def _aggregate(seen: Seen, out: dict[str, Any]) -> None:
    """Sums over data-parallel ranks, each counted once."""
    pools: dict[str, dict[str, Any]] = {}
    for entry in seen.ready:
        if match := re.search(r"\bDP(\d+)", entry["rank"]):
            pools.setdefault(match[1], entry)
    if len(pools) > 1:
        out["aggregate_tokens"] = sum(entry.get("max_total_num_tokens", 0) for entry in pools.values())
        out["aggregate_running_requests"] = sum(entry.get("max_running_requests", 0) for entry in pools.values())


def _pools(seen: Seen, out: dict[str, Any]) -> None:
    by_rank: dict[str, list[dict[str, Any]]] = {}
    for pool in seen.pools:
        by_rank.setdefault(pool["rank"], []).append(pool)
    if not by_rank:
        return
    window, full = seen.once.get("swa_layer_tokens"), seen.once.get("full_layer_tokens")
    if any(len(pools) > 1 for pools in by_rank.values()):
        # Ranks of one server list the same pools; pools of other servers have no rank in common.
        several = [pools for pools in by_rank.values() if len(pools) > 1]
        alike = all([_bare(pool) for pool in pools] == [_bare(pool) for pool in several[0]] for pools in by_rank.values())
        listed = several[0] if alike else seen.pools
        kinds = _kinds(seen, listed, window, full)
        out["kv_pools"] = [{**_bare(pool), **({"kind": kind} if kind else {})} for pool, kind in zip(listed, kinds, strict=True)]
        mains = {pools[0]["rank"]: main for pools in by_rank.values() if (main := _main(seen, pools, window, full)) is not None}
    else:
        mains = {rank: pools[0] for rank, pools in by_rank.items()}
    for name, key in (("kv_tokens", "tokens"), ("k_size_gb", "k_size_gb"), ("v_size_gb", "v_size_gb"), ("kv_size_gb", "kv_size_gb")):
        values = {rank: pool[key] for rank, pool in mains.items() if key in pool}
        if values:
            _spread(out, name, values)


def _kinds(seen: Seen, pools: list[dict[str, Any]], window: int | None, full: int | None) -> list[str]:
    if window is not None and full is not None and window != full:
        return ["swa" if pool["tokens"] == window else "full" if pool["tokens"] == full else "" for pool in pools]
    if pools[0]["rank"] in seen.draft_ranks and len({pool["rank"] for pool in pools}) == 1:
        return ["target", *["draft"] * (len(pools) - 1)]
    return [""] * len(pools)


def _main(seen: Seen, pools: list[dict[str, Any]], window: int | None, full: int | None) -> dict[str, Any] | None:
    """The pool that limits a rank: the full one beside a window pool, the target's beside the draft's; None where nothing tells."""
    kinds = _kinds(seen, pools, window, full)
    for wanted in ("full", "target"):
        if wanted in kinds:
            return pools[kinds.index(wanted)]
    return pools[0] if len(pools) == 1 or len({pool["tokens"] for pool in pools}) == 1 else None


def _canary_values(seen: Seen, out: dict[str, Any]) -> None:
    if not seen.canary:
        return
    out["canary"] = dict(seen.canary)
    if seen.installs:
        out["canary_installs"] = max(map(len, seen.installs.values()))
    if seen.offsets:
        out["canary_token_offsets"] = seen.offsets
    verify = seen.per_rank.get("verify_capacity", {})
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
