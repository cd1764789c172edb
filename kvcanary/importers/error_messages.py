"""What an engine's error means: explanation, likely causes in order, and what to change, for each message that concerns KV memory or the canary.

The texts are ours; the patterns match the engines' sentences, also where a terminal broke them. Values named in a message become values of the
fixes. Labels are stable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvcanary.config.findings import Fix
from kvcanary.config.rule_parts import fix
from kvcanary.importers.log_records import Record
from kvcanary.importers.result import ErrorExplanation

Groups = Mapping[str, str]
_N, _F = r"-?\d+", r"-?\d+(?:\.\d+)?"
MAX_SHOWN_CHARS = 300
TELLING = re.compile(
    r"kv-canary|kv_canary|kernel_run_counter|[Oo]ut ?[Oo]f ?[Mm]emory|runs out of memory|Not enough memory|leave no GPU memory|"
    r"is larger than the profiled value -|exceeds the maximum allowed length|Mem Leak|memory leak|already freed|sweep-interval requires|"
    r"No available memory for the cache|max seq len|ree memory on device|cannot hold even one request"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kind of message. Text may name the pattern's groups in braces; `fixes` and `values` get them as text."""

    label: str
    pattern: re.Pattern[str]
    explanation: str
    causes: tuple[str, ...]
    fixes: Callable[[Groups], Iterable[Fix]] = lambda groups: ()
    values: Callable[[Groups], Mapping[str, Any]] = lambda groups: {}


def _raised(groups: Groups) -> Iterable[Fix]:
    """The fraction that the message names, else the least one that the weights of the same text need, else the flag without a value."""
    wanted = groups.get("suggested") or groups.get("least")
    if wanted:
        yield fix("mem_fraction_static", float(wanted), f"set --mem-fraction-static to {float(wanted):g}")
    else:
        yield Fix(field="mem_fraction_static", value=None, flag="--mem-fraction-static", text="raise --mem-fraction-static")


def _positive_fix(groups: Groups) -> Iterable[Fix]:
    legal = {"req_to_token_pool_size": 1, "max_seq_len_per_req": 1, "max_prefill_tokens": 16384, "cuda_graph_max_bs": 0}
    name = groups["name"]
    if name in legal:
        yield fix(name, legal[name])
    elif name == "speculative_num_draft_tokens":
        yield fix(name, None)
    elif name == "per_forward_write_entry_capacity":
        yield fix("chunked_prefill_size", 8192)
    elif "ring_capacity" in name:
        yield fix("ring_capacity", 1024)


CANARY = (
    Entry(
        label="pool_class_not_supported",
        pattern=re.compile(
            r"kv-canary: no attacher registered for pool class (?P<pool>\w+)(?:; supported: ?(?P<supported>\[[^\[\]]{0,2000}\]))?"
        ),
        explanation="The canary cannot be attached to a {pool}: it knows no layout for this pool class. The server stops; the pool itself is fine.",
        causes=(
            "The model uses latent or sparse attention (MLA, DSA, NSA) or a state cache, which has no canary in current releases.",
            "A cache option (mxfp8, page-major layout, unified memory) changes the pool class; classes are matched exactly.",
        ),
        fixes=lambda groups: (fix("mode", "none"),),
        values=lambda groups: {
            "pool_class": groups["pool"],
            **({"supported_pool_classes": re.findall(r"\w+", groups["supported"])} if groups.get("supported") else {}),
        },
    ),
    Entry(
        label="canary_pool_empty",
        pattern=re.compile(rf"kv-canary: pool_slot_count must be positive, got (?P<got>{_N})"),
        explanation="The KV pool came out with {got} slots, so there is nothing to cache and nothing to watch over.",
        causes=(
            "The weights take the whole static share of the memory: --mem-fraction-static has to go up.",
            "The weights are too large for this many ranks, or another process holds memory on the device.",
            "--max-total-tokens is 0 or less than one page.",
        ),
        fixes=_raised,
        values=lambda groups: {"rejected": {"pool_slot_count": int(groups["got"])}},
    ),
    Entry(
        label="canary_input_not_positive",
        pattern=re.compile(
            rf"kv-canary: (?:[A-Z]\w+ )?(?!pool_slot_count)(?P<name>\w+) must be (?P<rule>positive|non-negative), got (?P<got>{_N})"
        ),
        explanation="The canary sizes its buffers from {name}, which came out as {got}; it must be {rule}.",
        causes=(
            "A flag, or a value that the engine computed from one, is zero or negative.",
            "For the write-entry capacity: the prefill chunk is 0, which the canary takes as a limit of zero tokens.",
        ),
        fixes=_positive_fix,
        values=lambda groups: {"rejected": {groups["name"]: int(groups["got"])}},
    ),
    Entry(
        label="canary_batch_exceeds_capacity",
        pattern=re.compile(
            rf"kv-canary: forward_batch\.batch_size=(?P<got>{_N}) exceeds\s*pre-allocated\s*write_req_capacity=(?P<capacity>{_N})"
        ),
        explanation="A batch of {got} requests ran, and the canary was installed for {capacity}: the larger of request rows and graph batch.",
        causes=(
            "Batches are padded beyond the running requests, as data-parallel attention does.",
            "The limit of running requests was raised after the canary was installed.",
        ),
        fixes=lambda groups: (fix("cuda_graph_max_bs", int(groups["got"])),),
    ),
    Entry(
        label="canary_tokens_exceed_capacity",
        pattern=re.compile(
            rf"kv-canary: forward_batch token count=(?P<got>{_N}) exceeds\s*pre-allocated\s*write_entry_capacity=(?P<capacity>{_N})"
        ),
        explanation="One forward held {got} tokens, and the canary was installed for {capacity}.",
        causes=(
            "Chunked prefill is off and a prompt is longer than the prefill budget.",
            "The chunk is 0: the scheduler reads that as off, the canary as a limit of zero.",
            "Tokens of padding under data-parallel attention count too.",
        ),
        fixes=lambda groups: (fix("max_prefill_tokens", int(groups["got"])), fix("chunked_prefill_size", int(groups["capacity"]))),
    ),
    Entry(
        label="canary_batch_exceeds_static_capacity",
        pattern=re.compile(rf"kv-canary: per-forward batch size (?P<got>{_N}) exceeds static\s*capacity (?P<capacity>{_N})"),
        explanation="A batch of {got} requests ran, and the canary's input rows hold {capacity}.",
        causes=("Batches are padded beyond the running requests.", "The graph batch is smaller than the batches that run."),
        fixes=lambda groups: (fix("cuda_graph_max_bs", int(groups["got"])),),
    ),
    Entry(
        label="canary_plan_batch_limit",
        pattern=re.compile(r"supports at most bs=(?P<limit>\d+) reqs per launch, got bs=(?P<got>\d+)"),
        explanation="The canary's plan kernel takes {limit} requests per launch and got {got}. The limit is built in.",
        causes=("More requests may run on one rank than the kernel takes.",),
        fixes=lambda groups: (fix("max_running_requests", int(groups["limit"])),),
    ),
    Entry(
        label="canary_window_map_missing",
        pattern=re.compile(r"requires full_to_swa_index_mapping when swa_window_size > 0"),
        explanation="The model has a sliding window but the pool gave no map from full slots to window slots.",
        causes=("The window layers share the full pool (hybrid window memory is off) while the canary expects two pools.",),
        fixes=lambda groups: (fix("mode", "none"),),
    ),
    Entry(
        label="canary_verify_capacity_mismatch",
        pattern=re.compile(r"kv-canary: launch_canary_plan_kernels verify_capacity=(?P<got>\d+) does not match"),
        explanation="A plan was launched with a verify capacity of {got} that is not the length of its buffers. It is a fault of the installation.",
        causes=("A patched or mixed installation: the canary's parts come from different releases.",),
    ),
    Entry(
        label="canary_forward_mode",
        pattern=re.compile(r"Unsupported forward mode for kv-canary: (?P<mode>[\w.<>: ]+)"),
        explanation="The scheduler ran a kind of forward ({mode}) that the canary cannot plan for.",
        causes=("A feature that adds its own forward mode (two-batch overlap, split prefill, diffusion decoding) runs beside the canary.",),
        fixes=lambda groups: (fix("mode", "none"),),
    ),
    Entry(
        label="canary_sweep_tree",
        pattern=re.compile(r"walk_radix_cache_for_canary does not support (?P<tree>\w+)"),
        explanation="A sweep walks the prefix tree, and {tree} is a tree that it cannot walk.",
        causes=(
            "The prefix cache is off (ChunkCache), so there is no tree.",
            "The cache class is newer than the walker: a host tier, or an external cache.",
        ),
        fixes=lambda groups: (fix("sweep_interval", 0),),
    ),
    Entry(
        label="canary_sweep_without_mode",
        pattern=re.compile(r"--kv-canary-sweep-interval requires --kv-canary"),
        explanation="A sweep was asked for while the canary is off.",
        causes=("--kv-canary is missing or none.",),
        fixes=lambda groups: (fix("mode", "log"), fix("sweep_interval", 0)),
    ),
    Entry(
        label="canary_mode",
        pattern=re.compile(r"kv-canary: kv_canary must be one of none/log/raise, got '(?P<got>[^']{0,40})'"),
        explanation="{got!r} is no canary mode.",
        causes=("Older builds said off, on and raise; the names are none, log and raise now.",),
        fixes=lambda groups: (fix("mode", "log"), fix("mode", "none")),
    ),
    Entry(
        label="canary_piecewise_graph",
        pattern=re.compile(r"kv-canary: piecewise cuda graph is not supported"),
        explanation="Prefill graphs captured in pieces run parts of the model outside the forward that the canary wraps.",
        causes=("The prefill graph backend is tc_piecewise, by flag or by the engine's own choice.",),
        fixes=lambda groups: (fix("cuda_graph_backend_prefill", "breakable"), fix("cuda_graph_backend_prefill", "disabled")),
    ),
    Entry(
        label="canary_reference_in_graph",
        pattern=re.compile(r"kv-canary: (?P<device>\w+) has no canary CUDA kernels"),
        explanation="On {device} the canary runs as a torch reference, which cannot be captured in a graph.",
        causes=("Decode graphs are on for a device without canary kernels.",),
        fixes=lambda groups: (fix("cuda_graph_backend_decode", "disabled"), fix("mode", "none")),
    ),
    Entry(
        label="canary_row_bytes",
        pattern=re.compile(r"kv-canary: (?:RealKvSource\.)?num_bytes_per_token must be a positive multiple of\s*16,? got (?P<got>\d+)"),
        explanation="The real-KV hash reads 16 bytes at a time and a row of {got} bytes is no multiple of that.",
        causes=("Few heads per rank with a one-byte KV dtype make a short row.",),
        fixes=lambda groups: (fix("real_data", "none"),),
    ),
    Entry(
        label="canary_health",
        pattern=re.compile(
            r"kernel_run_counter did not increase since previous check for tags=(?P<tags>\[[^\[\]]{0,500}\]) at step=(?P<step>\d+)"
        ),
        explanation="The canary's own check found that {tags} had not run since its last look (step {step}) and stopped the server in any mode.",
        causes=(
            "Only sweep tags are named: the sweep interval is above 100, so no sweep fell between two looks.",
            "HEAD or TAIL tags are named: batches ran outside the wrapped forward, or a captured graph has no canary in it.",
        ),
        fixes=lambda groups: (fix("sweep_interval", 100),) if "SWEEP" in groups["tags"] else (),
    ),
    Entry(
        label="canary_verify_overflow",
        pattern=re.compile(r"per-forward verify skipped this step due to overflow \(total=(?P<total>\d+), capacity=(?P<capacity>\d+)\)"),
        explanation="In {total} steps so far the prefixes to verify were longer than the capacity of {capacity}, so nothing was verified in them.",
        causes=(
            "Many running requests share long prefixes: each counts the shared tokens again, and the sum passed three times the pool.",
        ),
    ),
    Entry(
        label="canary_violation",
        pattern=re.compile(r"RuntimeError: kv_canary violation: launch_tag=(?P<tag>\S+) fail_reason=(?P<reason>\S+)"),
        explanation="The canary found a slot that is not what it should be ({reason} at {tag}) and stopped the server, as raise mode does.",
        causes=(
            "KV corruption, or an input that the check does not expect. Open the log on the Inspect page for the pattern and its likely cause.",
        ),
    ),
)

MEMORY = (
    Entry(
        label="no_kv_memory",
        pattern=re.compile(
            rf"Loaded weights leave no GPU memory for the KV cache under\s*--mem-fraction-static=(?P<current>{_F})\."
            rf"(?:\s*Raise --mem-fraction-static above (?P<suggested>{_F}))?(?:\s*\(minimum viable = 1 - available/pre = (?P<minimum>{_F})\))?"
        ),
        explanation="The weights take more than the share of memory that --mem-fraction-static={current} allows for weights and KV together.",
        causes=(
            "The fraction is too small for this model on this device: it has to go up, not down.",
            "The weights of a draft model are counted too.",
            "Another process holds memory on the device.",
        ),
        fixes=_raised,
        values=lambda groups: {
            "mem_fraction_static": float(groups["current"]),
            **({"suggested_mem_fraction_static": float(groups["suggested"])} if groups.get("suggested") else {}),
            **({"minimum_mem_fraction_static": float(groups["minimum"])} if groups.get("minimum") else {}),
        },
    ),
    Entry(
        label="no_kv_memory",
        pattern=re.compile(
            r"Not enough memory[.;]? ?Please try to increase --mem-fraction-static\.?"
            rf"(?:\s*Current value: (?:mem_fraction_static=|self\.\w+=)?(?P<current>{_F}))?"
        ),
        explanation="After the weights were loaded, nothing is left of the static share for the KV pool.",
        causes=(
            "The static fraction is too small for the weights: it has to go up.",
            "The weights are too large for this many ranks: more tensor-parallel ranks or a smaller dtype.",
            "Another process holds memory on the device.",
        ),
        fixes=_raised,
        values=lambda groups: {"mem_fraction_static": float(groups["current"])} if groups.get("current") else {},
    ),
    Entry(
        label="swa_pool_too_small",
        pattern=re.compile(
            r"SWA pool \((?P<tokens>\d+) tokens\) cannot hold even one request: the prefill admission floor is "
            r"sliding_window_size \((?P<window>\d+)\) \+\s*page_size \((?P<page>\d+)\)"
        ),
        explanation="The window pool has {tokens} slots; one request needs the window of {window} and a page of {page}.",
        causes=("The window pool's share is small.", "The whole KV budget is small."),
        fixes=lambda groups: (fix("swa_full_tokens_ratio", 1.0),),
    ),
    Entry(
        label="input_exceeds_pool",
        pattern=re.compile(r"Input length \((?P<length>\d+) tokens\) exceeds the maximum allowed length \((?P<limit>\d+) tokens\)"),
        explanation="A prompt of {length} tokens was turned away: at most {limit} fit. The limit is the smaller of the context and the pool.",
        causes=("The pool is smaller than the context length, so one long prompt does not fit.", "The prompt is longer than the context."),
        fixes=lambda groups: (fix("pool_slot_count", int(groups["length"])),),
        values=lambda groups: {"rejected_input_len": int(groups["length"]), "max_allowed_input_len": int(groups["limit"])},
    ),
    Entry(
        label="alloc_req_slots_oom",
        pattern=re.compile(
            r"alloc_req_slots runs out of memory\.(?:.{0,120}?available_size\(\)=(?P<available>\d+), num_reqs=(?P<requests>\d+))?",
            re.DOTALL,
        ),
        explanation="The request table has no free row, although tokens may still be free.",
        causes=(
            "More requests run or are held than --max-running-requests has rows for: retracted, streaming or aborted ones keep their row.",
            "Requests were ended without giving back their row.",
        ),
        values=lambda groups: (
            {"req_pool_available": int(groups["available"]), "num_reqs": int(groups["requests"])} if groups["available"] else {}
        ),
    ),
    Entry(
        label="kv_pool_exhausted",
        pattern=re.compile(
            r"(?P<phase>Prefill|Decode) out of memory\. Try to lower your batch size\.(?:\s*Try to allocate (?P<tokens>\d+) tokens)?"
        ),
        explanation="The pool had too few free slots for this {phase} step, also after everything that can be evicted was.",
        causes=(
            "The scheduler admitted more than the pool holds: its estimate of new tokens was too hopeful.",
            "Slots were not given back, so less is free than should be.",
        ),
    ),
    Entry(
        label="swa_pool_leak",
        pattern=re.compile(
            r"SWA Pool Mem Leak Detected!\s*(?:\[\w+\] )?total=(?P<total>\d+), available=(?P<available>\d+), evictable=(?P<evictable>\d+), "
            r"protected=(?P<protected>\d+)(?:, uncached=(?P<uncached>\d+))?",
            re.IGNORECASE,
        ),
        explanation="The window pool's books do not close: free, evictable and protected slots do not add up to its {total} slots.",
        causes=(
            "More than the total: some slots were given back twice. Fewer: some were never given back.",
            "It is an accounting fault of the engine; the contents of the slots are not checked here.",
        ),
        values=lambda groups: _leak(groups),
    ),
    Entry(
        label="pool_leak",
        pattern=re.compile(r"\b(?P<pool>\w{1,60}) memory leak detected!"),
        explanation="The books of the {pool} do not close while the server is idle: some entries are neither free nor in use.",
        causes=("A request ended without giving back what it held.", "An abort, a disaggregated transfer or a draft worker kept slots."),
    ),
    Entry(
        label="committed_kv_already_freed",
        pattern=re.compile(r"Committed KV cache already freed(?: \((?:self\.)?kv_committed_len=(?P<length>\d+)\))?"),
        explanation="A request's KV was given back a second time. Between the two, its slots may have belonged to another request.",
        causes=("An abort or a retraction met the normal end of the request.", "A custom cache or a streaming session frees on its own."),
        values=lambda groups: {"kv_committed_len": int(groups["length"])} if groups.get("length") else {},
    ),
    Entry(
        label="kv_memory_insufficient",
        pattern=re.compile(
            rf"max seq len\s*\((?P<length>\d+)\),?\s*\(?(?P<needed>{_F}) ?GiB KV cache is needed, which is larger than\s*"
            rf"the available KV cache memory\s*\((?P<available>{_F}) ?GiB\)(?:.{{0,120}}?model length is (?P<estimate>\d+))?",
            re.DOTALL,
        ),
        explanation="One request of {length} tokens needs {needed} GiB of KV, and {available} GiB are left for it.",
        causes=("The context is longer than the memory allows.", "The share of memory for the engine is small."),
        values=lambda groups: {
            "max_model_len": int(groups["length"]),
            "kv_needed_gib": float(groups["needed"]),
            "available_kv_gib": float(groups["available"]),
            **({"estimated_max_model_len": int(groups["estimate"])} if groups.get("estimate") else {}),
        },
        fixes=lambda groups: (
            (fix("max_seq_len_per_req", int(groups["estimate"]), f"set --max-model-len to {groups['estimate']}"),)
            if groups.get("estimate")
            else ()
        ),
    ),
    Entry(
        label="max_model_len_exceeds_kv",
        pattern=re.compile(
            r"max seq len\s*\((?P<length>\d+)\) is larger than the maximum number of tokens that can\s*be stored in KV cache\s*\((?P<tokens>\d+)\)"
        ),
        explanation="The context of {length} tokens is longer than the {tokens} tokens that the KV cache holds.",
        causes=("The context is longer than the memory allows.", "The share of memory for the engine is small."),
        values=lambda groups: {"max_model_len": int(groups["length"]), "kv_capacity_tokens": int(groups["tokens"])},
        fixes=lambda groups: (fix("max_seq_len_per_req", int(groups["tokens"]), f"set --max-model-len to {groups['tokens']}"),),
    ),
    Entry(
        label="free_memory_below_target",
        pattern=re.compile(
            rf"Free memory on device (?:\S+ )?\((?P<free>{_F})/(?P<total>{_F}) ?GiB\) on startup is less than\s*desired GPU memory utilization\s*"
            rf"\((?P<share>{_F}), (?P<wanted>{_F}) ?GiB\)"
        ),
        explanation="{free} of {total} GiB are free, and the utilization of {share} asks for {wanted} GiB.",
        causes=("Another process holds memory on the device.", "The utilization is too high beside the desktop or another server."),
        values=lambda groups: {
            "free_gib": float(groups["free"]),
            "total_gib": float(groups["total"]),
            "gpu_memory_utilization": float(groups["share"]),
            "wanted_gib": float(groups["wanted"]),
        },
        fixes=lambda groups: _utilization(groups),
    ),
    Entry(
        label="no_kv_memory",
        pattern=re.compile(r"No available memory for the cache blocks"),
        explanation="After weights and activations nothing is left of the engine's share of memory for the KV cache.",
        causes=("--gpu-memory-utilization is too small for the weights.", "The model is too large for this many ranks."),
    ),
)

_NEGATIVE_PROFILE = re.compile(rf"max_total_tokens=(?P<asked>{_N}) is larger than the profiled value (?P<profiled>-\d+)")
_OOM = re.compile(
    rf"(?:CUDA|HIP|XPU) out of memory\.(?: Tried to allocate (?P<tried>{_F}) ?(?P<tried_unit>[GMK]iB))?"
    rf"(?:.{{0,40}}?total capacity of (?P<total>{_F}) ?(?P<total_unit>[GM]iB))?(?: of which (?P<free>{_F}) ?(?P<free_unit>[GMK]iB|bytes) is free)?"
    rf"(?:.{{0,160}}?this process has (?P<used>{_F}) ?(?P<used_unit>[GM]iB) memory in use)?",
    re.DOTALL,
)
_WEIGHTS = re.compile(rf"Load weight end.{0, 300}?avail mem=(?P<avail>{_F}) ?GB, mem usage=(?P<used>{_F}) ?GB")
_PROGRESS = re.compile(rf"bs=(\d+) avail_mem=({_F}) GB")
_UNITS_GIB = {"GiB": 1.0, "MiB": 1 / 1024, "KiB": 1 / (1 << 20), "bytes": 1 / (1 << 30)}


def _leak(groups: Groups) -> Mapping[str, Any]:
    values = {name: int(text) for name, text in groups.items() if text}
    total = values["available"] + values["evictable"] + values["protected"]
    return {**values, "sum": total, "overcount": total - values["total"]}


def _utilization(groups: Groups) -> Iterable[Fix]:
    share = math.floor(float(groups["free"]) / float(groups["total"]) * 100) / 100 if float(groups["total"]) > 0 else 0
    if 0 < share < 1:
        yield Fix(
            field="mem_fraction_static",
            value=share,
            flag=f"--gpu-memory-utilization {share:g}",
            text=f"set --gpu-memory-utilization to {share:g}",
        )


def explain(records: Iterable[Record]) -> tuple[list[ErrorExplanation], dict[str, Any]]:
    """Explanations in the order of the text, one per kind, and the values that the messages state."""
    found: list[ErrorExplanation] = []
    values: dict[str, Any] = {}
    stage = _Stage()
    for record in records:
        stage.see(record.text)
        if not TELLING.search(record.text):
            continue
        for entry in (*CANARY, *MEMORY):
            match = entry.pattern.search(record.text) or entry.pattern.search(record.spaced)
            if match is None:
                continue
            groups = {**stage.known(), **match.groupdict(default="")}
            for name, value in entry.values(groups).items():
                values.setdefault(name, value)
            _add(found, entry, match[0], groups, record.line)
        if match := _NEGATIVE_PROFILE.search(record.text):
            _add(found, _NEGATIVE, match[0], {**stage.known(), **match.groupdict()}, record.line)
        if match := _OOM.search(record.text):
            _out_of_memory(found, values, match, record.line, stage)
    if any(entry.label == "negative_pool" for entry in found):
        # The engine's own sentence about the same thing, printed behind it.
        found = [entry for entry in found if entry.label != "no_kv_memory"]
    return found, values


_NEGATIVE = Entry(
    label="negative_pool",
    pattern=_NEGATIVE_PROFILE,
    explanation="The profile of memory gave a pool of {profiled} tokens: after the weights less is left than has to stay free. No KV fits.",
    causes=(
        "The static fraction is too small for the weights: it has to go up.",
        "The weights are too large for this many ranks, or another process holds memory.",
    ),
    fixes=_raised,
)


@dataclass(slots=True)
class _Stage:
    """How far the start had come, which decides what to do about running out of memory."""

    name: str = "load_weights"
    last_batch: int | None = None
    least_fraction: float | None = None

    def known(self) -> dict[str, str]:
        """The least static fraction that the weights need, where the text states their size."""
        return {} if self.least_fraction is None else {"least": f"{self.least_fraction:.3f}"}

    def see(self, text: str) -> None:
        if self.least_fraction is None and (match := _WEIGHTS.search(text)):
            free, used = float(match["avail"]), float(match["used"])
            if free > 0 and used > 0:
                self.least_fraction = min(0.999, math.floor(used / (free + used) * 1000 + 1) / 1000)
        lowered = text[:400].lower()
        if "capture cuda graph" in lowered or "capturing batches" in lowered or ("capture" in lowered and "cuda graph" in lowered):
            self.name = "graph_capture"
        elif "load weight end" in lowered:
            self.name = "kv_pool"
        elif "memory pool end" in lowered:
            self.name = "graph_capture"
        elif "fired up" in lowered or "decode batch" in lowered or "prefill batch" in lowered:
            self.name = "serving"
        for batch, _ in _PROGRESS.findall(text):
            self.last_batch = int(batch[:9])


_OOM_TEXTS = {
    "graph_capture": (
        "Memory ran out while decode graphs were captured: the KV pool was already allocated, so too little was left beside it.",
        ("The static fraction is too high: it has to go down.", "The largest captured batch is too large."),
    ),
    "load_weights": (
        "Memory ran out while the weights were loaded.",
        ("The weights do not fit on this many ranks.", "Another process holds memory on the device."),
    ),
    "kv_pool": (
        "Memory ran out while the KV pool was allocated.",
        ("The static fraction is too high.", "Another process took memory meanwhile."),
    ),
    "serving": (
        "Memory ran out while serving: activations of one forward did not fit beside the pool.",
        ("The prefill chunk is too large for what is left.", "The static fraction is too high."),
    ),
}


def _out_of_memory(found: list[ErrorExplanation], values: dict[str, Any], match: re.Match[str], line: int, stage: _Stage) -> None:
    groups = match.groupdict(default="")
    details: dict[str, Any] = dict(values.get("oom", {}))
    for name, key, scale in (("tried", "tried_gib", 1), ("total", "total_gib", 1), ("free", "free_mib", 1024), ("used", "in_use_gib", 1)):
        if groups[name]:
            unit = _UNITS_GIB[groups[f"{name}_unit"]]
            exact = float(groups[name])
            details.setdefault(key, exact if unit * scale == 1 else round(exact * unit * scale, 4))
    details.setdefault("phase", stage.name)
    if stage.name == "graph_capture" and stage.last_batch is not None:
        details.setdefault("last_bs", stage.last_batch)
    values["oom"] = details
    label = "oom_graph_capture" if stage.name == "graph_capture" else "oom"
    if any(entry.label == label for entry in found):
        return
    explanation, causes = _OOM_TEXTS[stage.name]
    fixes: tuple[Fix, ...] = ()
    batch = stage.last_batch
    if stage.name == "graph_capture" and batch is not None and batch > 1:
        fixes = (fix("cuda_graph_max_bs", batch // 2),)
    found.append(ErrorExplanation(label=label, message=_shown(match[0]), explanation=explanation, causes=causes, fixes=fixes, line=line))


def _add(found: list[ErrorExplanation], entry: Entry, message: str, groups: Groups, line: int) -> None:
    if any(earlier.label == entry.label for earlier in found):
        return
    found.append(
        ErrorExplanation(
            label=entry.label,
            message=_shown(message),
            explanation=entry.explanation.format(**groups),
            causes=entry.causes,
            fixes=tuple(entry.fixes(groups)),
            line=line,
        )
    )


def _shown(message: str) -> str:
    plain = " ".join(message.split())
    return plain if len(plain) <= MAX_SHOWN_CHARS else plain[: MAX_SHOWN_CHARS - 3] + "..."
