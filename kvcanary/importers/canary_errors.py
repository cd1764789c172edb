"""Messages of the canary: what stops its installation, what it refuses while running, and what it found."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvcanary.config.findings import Fix
from kvcanary.config.rule_parts import fix
from kvcanary.importers.error_entries import Entry, Groups, N, raised


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
        pattern=re.compile(rf"kv-canary: pool_slot_count must be positive, got (?P<got>{N})"),
        explanation="The KV pool came out with {got} slots, so there is nothing to cache and nothing to watch over.",
        causes=(
            "The weights take the whole static share of the memory: --mem-fraction-static has to go up.",
            "The weights are too large for this many ranks, or another process holds memory on the device.",
            "--max-total-tokens is 0 or less than one page.",
        ),
        fixes=raised,
        values=lambda groups: {"rejected": {"pool_slot_count": int(groups["got"])}},
    ),
    Entry(
        label="canary_input_not_positive",
        pattern=re.compile(
            rf"kv-canary: (?:[A-Z]\w+ )?(?!pool_slot_count)(?P<name>\w+) must be (?P<rule>positive|non-negative), got (?P<got>{N})"
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
            rf"kv-canary: forward_batch\.batch_size=(?P<got>{N}) exceeds\s*pre-allocated\s*write_req_capacity=(?P<capacity>{N})"
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
            rf"kv-canary: forward_batch token count=(?P<got>{N}) exceeds\s*pre-allocated\s*write_entry_capacity=(?P<capacity>{N})"
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
        pattern=re.compile(rf"kv-canary: per-forward batch size (?P<got>{N}) exceeds static\s*capacity (?P<capacity>{N})"),
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
