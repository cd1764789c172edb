"""What can go wrong with a KV cache, and which check of the canary can see it: data, so that missed and out of reach stay apart.

Kinds follow public reports (refs). A sighting says which launch reports which reason under which options. A variant without sightings is
out of reach of every configuration, and `blind` says why. Rows of each variant are confirmed by scenarios run against the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvcanary.errors import ConfigError
from kvcanary.faults.canary_config import CanaryConfig, StrictCheck
from kvcanary.faults.ops import Hook
from kvcanary.layout import FailReason, RealKvHashMode

Need = Literal["token_assert", "input_assert", "v_half", "zero_cell", "zero_seed", "more_layers", "more_bytes"]
Phase = Literal["HEAD", "TAIL", "SWEEP"]

ANY = (RealKvHashMode.NONE, RealKvHashMode.PARTIAL, RealKvHashMode.ALL)
HASHED = (RealKvHashMode.PARTIAL, RealKvHashMode.ALL)
WHOLE_ROW = (RealKvHashMode.ALL,)


@dataclass(frozen=True, slots=True)
class Sighting:
    """One way to see a fault: launches of `phases` report `reason` when real_data is one of `modes` and `need` is switched on.

    reason None is a strict rule about slot 0, which is no ring row. if_read: only when a request reads the slot again, which may never happen.
    """

    reason: FailReason | None
    phases: tuple[Phase, ...]
    modes: tuple[RealKvHashMode, ...] = ANY
    need: Need | None = None
    latency_steps: int = 0
    if_read: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of a fault. blind: why configurations without a sighting cannot see it."""

    name: str
    what: str
    hook: Hook
    sightings: tuple[Sighting, ...]
    blind: str
    perturb: str = ""
    in_memory: bool = True


@dataclass(frozen=True, slots=True)
class FaultClass:
    """A kind of corruption. refs: public reports, repository#number."""

    kind: str
    title: str
    what: str
    variants: tuple[Variant, ...]
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether a configuration can see a variant: the sightings it has, or the reason why there are none.

    certain is false where a later forward has to read the slot again: a request that ends in the step of the fault takes it along.
    """

    visible: bool
    certain: bool
    sightings: tuple[Sighting, ...]
    reason: str


def reach(variant: Variant, config: CanaryConfig) -> Reach:
    """What a configuration can see of a variant. A SWEEP sighting counts only with a sweep interval."""
    switched = {
        "token_assert": config.verify_token_assert,
        "input_assert": config.write_input_assert,
        "v_half": config.verify_v_half,
        **{check.value: config.has(check) for check in StrictCheck},
    }
    seen = []
    for sighting in variant.sightings:
        phases = tuple(phase for phase in sighting.phases if phase != "SWEEP" or config.sweep_interval)
        if phases and config.real_data in sighting.modes and (sighting.need is None or switched[sighting.need]):
            seen.append(sighting)
    certain = any(sighting.latency_steps == 0 and not sighting.if_read for sighting in seen)
    return Reach(bool(seen), certain, tuple(seen), "" if seen else variant.blind)


def find(kind: str, variant: str) -> Variant:
    """A variant by name; ConfigError with the known names otherwise."""
    for fault in CATALOGUE:
        if fault.kind == kind:
            for candidate in fault.variants:
                if candidate.name == variant:
                    return candidate
            raise ConfigError(f"{kind} has no variant {variant!r}; known: {', '.join(v.name for v in fault.variants)}")
    raise ConfigError(f"fault must be one of {', '.join(fault.kind for fault in CATALOGUE)}, got {kind!r}")


_BOTH: tuple[Phase, ...] = ("HEAD", "TAIL")
_ALL: tuple[Phase, ...] = ("HEAD", "TAIL", "SWEEP")
_DATA: tuple[Phase, ...] = ("TAIL", "SWEEP")
_SWEEP: tuple[Phase, ...] = ("SWEEP",)
_CHAIN, _POSITION = FailReason.VERIFY_CHAIN_HASH, FailReason.VERIFY_POSITION
_BYTES, _TOKEN = FailReason.VERIFY_REAL_KV_HASH, FailReason.VERIFY_TOKEN
_WRITE_TOKEN, _WRITE_POSITION = FailReason.WRITE_TOKEN, FailReason.WRITE_POSITION

_FOREIGN_RECORD = (Sighting(_CHAIN, _ALL), Sighting(_POSITION, _ALL), Sighting(_TOKEN, _BOTH, need="token_assert"))
_FOREIGN_BYTES = (Sighting(_BYTES, _DATA, HASHED),)
_LATE_RECORD = (
    Sighting(_BYTES, ("TAIL",), HASHED),
    Sighting(_CHAIN, _BOTH, latency_steps=1),
    Sighting(_CHAIN, _SWEEP),
    Sighting(_POSITION, _BOTH, latency_steps=1),
    Sighting(_TOKEN, _BOTH, need="token_assert", latency_steps=1),
)
_NO_HASH = "records agree and no KV byte is hashed; needs real data partial or all"
_NOT_IN_MEMORY = "no record and no KV byte differs from what it should be"

CATALOGUE: tuple[FaultClass, ...] = (
    FaultClass(
        "late_write_after_free",
        "Late write after free",
        "A writer that was still in flight lands on slots that were freed and given to another request.",
        (
            Variant("with_records", "the late writer stamps records too", Hook.BEFORE_PLAN, _FOREIGN_RECORD, ""),
            Variant("bytes_only", "a plain copy that knows nothing of records", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH),
        ),
        ("sgl-project/sglang#24527", "sgl-project/sglang#35049", "vllm-project/vllm#45357"),
    ),
    FaultClass(
        "slot_alias",
        "One slot, two owners",
        "The allocator hands a slot out twice, or a table cell names a slot of somebody else.",
        (
            Variant("two_requests", "the second owner writes over the first", Hook.WRITE, _LATE_RECORD, ""),
            Variant(
                "wrong_cell",
                "a cell of one request names the slot of another",
                Hook.BEFORE_PLAN,
                (Sighting(_CHAIN, _BOTH), Sighting(_POSITION, _BOTH), Sighting(_TOKEN, _BOTH, need="token_assert")),
                "",
                "req_to_token",
            ),
            Variant(
                "cell_to_slot_0",
                "a cell names the padding slot",
                Hook.BEFORE_PLAN,
                (Sighting(None, _BOTH, need="zero_cell"),),
                "verify skips slot 0, and the chain check of its successor with it; only a strict rule looks at the cell",
            ),
            Variant(
                "seed_at_slot_0",
                "the last cell, from which a request goes on, names the padding slot",
                Hook.BEFORE_PLAN,
                (Sighting(_WRITE_POSITION, _BOTH), Sighting(None, _BOTH, need="zero_seed"), Sighting(None, _BOTH, need="zero_cell")),
                "",
            ),
        ),
        ("sgl-project/sglang#23392", "sgl-project/sglang-jax#982"),
    ),
    FaultClass(
        "stale_row",
        "Request row reused while it is read",
        "The row of the request table that a forward reads already holds the cells of another request.",
        (
            Variant(
                "partly_overwritten",
                "the leading cells are another request's",
                Hook.BEFORE_PLAN,
                (Sighting(_CHAIN, _BOTH), Sighting(_TOKEN, _BOTH, need="token_assert")),
                "",
            ),
            Variant(
                "fully_overwritten",
                "for one forward the whole prefix is another request's",
                Hook.BEFORE_PLAN,
                (Sighting(_TOKEN, _BOTH, need="token_assert"), Sighting(_CHAIN, _ALL, latency_steps=1)),
                "",
            ),
        ),
        ("sgl-project/sglang#18803", "sgl-project/sglang#33547"),
    ),
    FaultClass(
        "page_table_race",
        "Output slots change under the step",
        "The tensor that says where this forward's KV goes is overwritten while the forward runs.",
        (
            Variant("records_and_bytes", "records follow the wrong tensor too", Hook.WRITE, _LATE_RECORD, ""),
            Variant("bytes_only", "only the model follows it", Hook.WRITE, _FOREIGN_BYTES, _NO_HASH),
        ),
        ("NVIDIA/TensorRT-LLM#15546", "sgl-project/sglang#29353"),
    ),
    FaultClass(
        "position_shift",
        "Right slot, wrong position",
        "A token is stored for a position that is off by one or by whole pages.",
        (
            Variant(
                "one_token",
                "one token of a running request",
                Hook.WRITE,
                (
                    Sighting(_WRITE_POSITION, _BOTH),
                    Sighting(_POSITION, _BOTH, latency_steps=1),
                    Sighting(_POSITION, _SWEEP),
                ),
                "",
            ),
            Variant(
                "first_token",
                "the first token of a request, behind which no seed stands",
                Hook.WRITE,
                (Sighting(_POSITION, _ALL, latency_steps=1), Sighting(_WRITE_POSITION, _BOTH, need="input_assert")),
                "",
            ),
        ),
        ("sgl-project/sglang#33656", "sgl-project/sglang#25015", "sgl-project/sglang#22819"),
    ),
    FaultClass(
        "padding_slot",
        "Padding rows write somewhere",
        "Rows that only fill up a graph or a data-parallel batch carry old slot numbers.",
        (
            Variant("live_slot", "they hit a slot in use", Hook.MODEL_FORWARD, _FOREIGN_BYTES, _NO_HASH),
            Variant("slot_0", "they hit the padding slot", Hook.MODEL_FORWARD, (), "slot 0 is never verified"),
        ),
        ("sgl-project/sglang#32477", "vllm-project/vllm#43810", "InternLM/lmdeploy#4569"),
    ),
    FaultClass(
        "spec_rollback",
        "Draft tokens outside the bookkeeping",
        "Speculation writes past the slots it reserved, or keeps a token that was rejected.",
        (
            Variant("past_the_reservation", "drafts land on another request's slots", Hook.WRITE, _LATE_RECORD, ""),
            Variant(
                "rejected_token_kept",
                "a slot keeps a token that the output does not have",
                Hook.WRITE,
                (Sighting(_TOKEN, _BOTH, need="token_assert", latency_steps=1), Sighting(_WRITE_TOKEN, _BOTH, need="input_assert")),
                "the chain follows the token that was written; only the token checks know the right one",
            ),
        ),
        ("sgl-project/sglang#34189", "vllm-project/vllm#42971", "vllm-project/vllm#16370"),
    ),
    FaultClass(
        "swa_eviction",
        "Window slot given away too early",
        "A slot of the window pool is freed while the window of a running request covers it.",
        (
            Variant("reused_inside_window", "another request has written it", Hook.BEFORE_PLAN, _FOREIGN_RECORD, ""),
            Variant(
                "mapping_cleared",
                "its translation became 0",
                Hook.BEFORE_PLAN,
                (Sighting(None, _BOTH, need="zero_cell"),),
                "a translation of 0 reads as padding, so slot and successor are skipped; only a strict rule looks at it",
            ),
        ),
        ("sgl-project/sglang#31486", "sgl-project/sglang#8649", "sgl-project/sglang#30339"),
    ),
    FaultClass(
        "pd_transfer",
        "Transfer from prefill to decode not whole",
        "Pages, records or the first token arrive late, in part, or for another request.",
        (
            Variant("bytes_late", "records are there, some bytes are not", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH),
            Variant(
                "page_missing",
                "neither records nor bytes of a page arrived",
                Hook.BEFORE_PLAN,
                (Sighting(_CHAIN, _ALL), Sighting(_POSITION, _ALL), Sighting(_TOKEN, _BOTH, need="token_assert")),
                "",
            ),
            Variant(
                "cut_after_k_layers",
                "the list ended before the TAIL records",
                Hook.BEFORE_PLAN,
                (
                    Sighting(_CHAIN, _DATA),
                    Sighting(_POSITION, _DATA),
                    Sighting(_BYTES, _DATA, HASHED),
                    Sighting(_WRITE_POSITION, ("TAIL",)),
                    Sighting(_TOKEN, ("TAIL",), need="token_assert"),
                ),
                "",
            ),
            Variant("pages_swapped", "two neighbours arrived in each other's place", Hook.BEFORE_PLAN, _FOREIGN_RECORD, ""),
            Variant(
                "other_request",
                "the pages of another request arrived at the right positions",
                Hook.BEFORE_PLAN,
                (Sighting(_CHAIN, _ALL), Sighting(_TOKEN, _BOTH, need="token_assert")),
                "",
            ),
            Variant(
                "first_token_swapped",
                "the first token is another request's",
                Hook.WRITE,
                (Sighting(_TOKEN, _BOTH, need="token_assert", latency_steps=1), Sighting(_WRITE_TOKEN, _BOTH, need="input_assert")),
                "the chain follows the token that was written; only the token checks know the right one",
            ),
        ),
        ("sgl-project/sglang#28971", "sgl-project/sglang#30233", "sgl-project/sglang#23020"),
    ),
    FaultClass(
        "tier_reload",
        "Reload from host or storage",
        "KV comes back into new slots with the wrong bytes or without its records.",
        (
            Variant(
                "records_left_behind",
                "bytes are right, the records are the previous owner's: an alarm without damage",
                Hook.BEFORE_PLAN,
                (
                    Sighting(_CHAIN, _ALL),
                    Sighting(_POSITION, _ALL),
                    Sighting(_BYTES, _DATA, HASHED),
                    Sighting(_TOKEN, _BOTH, need="token_assert"),
                ),
                "",
            ),
            Variant("wrong_bytes", "records came along, bytes are foreign", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH),
            Variant(
                "partial_copy",
                "the copy ended in the middle of each row",
                Hook.BEFORE_PLAN,
                (Sighting(_BYTES, _DATA, WHOLE_ROW), Sighting(_BYTES, _DATA, HASHED, need="more_bytes")),
                "real data partial hashes the first 16 bytes; needs all",
            ),
            Variant(
                "early_read",
                "the forward reads before the copy has ended",
                Hook.BEFORE_PLAN,
                (),
                "when TAIL looks, the copy has ended and the bytes are right",
            ),
        ),
        ("sgl-project/sglang#31427", "NVIDIA/TensorRT-LLM#8813", "sgl-project/sglang#38031"),
    ),
    FaultClass(
        "storage_visible_garbage",
        "Storage hit without content",
        "The storage tier answers 'present' for an object that was stored or loaded only in part.",
        (Variant("half_loaded", "the end of the prefix is an uninitialised buffer", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH),),
        ("LMCache/LMCache#4991", "LMCache/LMCache#3022", "kvcache-ai/Mooncake#850"),
    ),
    FaultClass(
        "stale_prefix_hit",
        "Prefix index names other content",
        "The tree keeps a node whose slots were rewritten, or its key does not tell two contents apart.",
        (
            Variant("node_kept_after_free", "slots of the node hold another request", Hook.BEFORE_PLAN, _FOREIGN_RECORD, ""),
            Variant(
                "key_without_adapter",
                "equal tokens under another adapter, image or tenant",
                Hook.BEFORE_PLAN,
                (),
                "tokens, positions, history and bytes agree; the record would need the extra key",
                in_memory=False,
            ),
        ),
        ("sgl-project/sglang#38319", "NVIDIA/TensorRT-LLM#12306", "vllm-project/vllm#38606"),
    ),
    FaultClass(
        "layout_mismatch",
        "Two sides disagree about the layout",
        "Producer and consumer use different strides or packing, and bytes end up at wrong places of a row.",
        (
            Variant("head_of_row", "the first bytes of a row changed places", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH),
            Variant(
                "tail_of_row",
                "bytes behind the first 16 changed places",
                Hook.BEFORE_PLAN,
                (Sighting(_BYTES, _DATA, WHOLE_ROW), Sighting(_BYTES, _DATA, HASHED, need="more_bytes")),
                "real data partial hashes the first 16 bytes; needs all",
            ),
        ),
        ("sgl-project/sglang#38790", "LMCache/LMCache#4463", "lightseekorg/tokenspeed#958"),
    ),
    FaultClass(
        "address_overflow",
        "Index arithmetic wraps",
        "Slot times row size leaves 32 bits in one kernel.",
        (
            Variant("store_wraps", "the store hits another slot", Hook.WRITE, _FOREIGN_BYTES, _NO_HASH),
            Variant("load_wraps", "only the read goes astray", Hook.MODEL_FORWARD, (), _NOT_IN_MEMORY, in_memory=False),
        ),
        ("vllm-project/vllm#50427", "vllm-project/vllm#52109", "lightseekorg/tokenspeed#501"),
    ),
    FaultClass(
        "recurrent_state",
        "State of another token boundary",
        "A hybrid model resumes a recurrent state that belongs to another boundary or request.",
        (
            Variant(
                "wrong_boundary",
                "the state is older than the prefix hit",
                Hook.BEFORE_PLAN,
                (),
                "the state pool carries no record",
                in_memory=False,
            ),
        ),
        ("vllm-project/vllm#53505", "vllm-project/vllm#53142", "vllm-project/vllm#53912"),
    ),
    FaultClass(
        "slot_leak",
        "Slots lost",
        "Slots are allocated and never freed.",
        (
            Variant(
                "never_freed",
                "a request leaves slots behind",
                Hook.AFTER_STEP,
                (),
                "nothing in a slot is wrong; the sum free + held + cached + in flight is the detector",
                in_memory=False,
            ),
        ),
        ("sgl-project/sglang#27789", "sgl-project/sglang#31616", "sgl-project/sglang-jax#1147"),
    ),
    FaultClass(
        "payload_bytes",
        "KV bytes change in place",
        "Stored K or V changes while token, position and history of the slot stay right.",
        (
            Variant("bit_flip", "one bit of the first bytes", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH, "real_kv_used"),
            Variant(
                "later_bytes",
                "a burst behind the first 16 bytes",
                Hook.BEFORE_PLAN,
                (Sighting(_BYTES, _DATA, WHOLE_ROW), Sighting(_BYTES, _DATA, HASHED, need="more_bytes")),
                "real data partial hashes the first 16 bytes; needs all",
            ),
            Variant("nan", "the row turns into NaN", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH),
            Variant("zeroed", "the row turns into zeros", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH),
            Variant(
                "stuck", "two bytes read as the same value from now on, whatever is written", Hook.BEFORE_PLAN, _FOREIGN_BYTES, _NO_HASH
            ),
            Variant(
                "v_row",
                "a bit of the V row",
                Hook.BEFORE_PLAN,
                (Sighting(_BYTES, _DATA, HASHED, need="v_half"),),
                "V is hashed only with the V half on and real data partial or all",
            ),
            Variant(
                "other_layer",
                "a bit of another layer than 0",
                Hook.BEFORE_PLAN,
                (Sighting(_BYTES, _DATA, HASHED, need="more_layers"),),
                "only layer 0 is hashed; a strict source adds a layer",
            ),
            Variant(
                "just_written",
                "a slot of this forward, after TAIL hashed it",
                Hook.AFTER_TAIL,
                (Sighting(_BYTES, ("TAIL",), HASHED, latency_steps=1), Sighting(_BYTES, _SWEEP, HASHED)),
                _NO_HASH,
                "real_kv_post_forward",
            ),
            Variant(
                "cached_only",
                "a slot that only the prefix tree holds",
                Hook.BEFORE_PLAN,
                (Sighting(_BYTES, _SWEEP, HASHED), Sighting(_BYTES, ("TAIL",), HASHED, latency_steps=1, if_read=True)),
                _NO_HASH,
                "real_kv_unused_cache",
            ),
            Variant(
                "bad_before_hash", "the model itself stores wrong bytes", Hook.MODEL_FORWARD, (), "TAIL hashes them and takes them as truth"
            ),
        ),
        ("ikawrakow/ik_llama.cpp#2083", "NVIDIA/TensorRT-LLM#2699", "vllm-project/vllm#39146"),
    ),
    FaultClass(
        "token_swap",
        "Sampled tokens change places",
        "Two requests of a batch get each other's sampled token.",
        (
            Variant(
                "sampler_exit",
                "the engine believes the swapped tokens",
                Hook.WRITE,
                (Sighting(_WRITE_TOKEN, _BOTH, need="input_assert"),),
                "chain, position and the engine's own list agree; only the input check with a token oracle knows better",
                "next_token_swap",
            ),
        ),
    ),
    FaultClass(
        "draft_pool",
        "KV of the draft model",
        "The draft model keeps KV of its own in the same slots, for the token after each position, under a canary of its own.",
        (
            Variant(
                "position_ahead",
                "positions are advanced before the draft forward instead of after it",
                Hook.WRITE,
                (Sighting(_WRITE_POSITION, _BOTH), Sighting(_POSITION, _BOTH, latency_steps=1)),
                "",
            ),
            Variant(
                "chunk_end_token",
                "the end of a prompt chunk gets the target's prediction instead of the next prompt token",
                Hook.WRITE,
                (Sighting(_TOKEN, _BOTH, need="token_assert", latency_steps=1),),
                "the chain follows the token that was written; only the token check knows the right one",
            ),
            Variant(
                "chunk_end_after_retraction",
                "a chunk that ends in the reply of a request that was sent back gets the prediction, since only its prompt is looked up",
                Hook.WRITE,
                (Sighting(_TOKEN, _BOTH, need="token_assert", latency_steps=1),),
                "the chain follows the token that was written; only the token check knows the right one",
            ),
        ),
        ("sgl-project/sglang#25015", "sgl-project/sglang#26329", "sgl-project/sglang#28254"),
    ),
    FaultClass(
        "canary_memory",
        "Stray write into the canary's memory",
        "Something writes into a canary buffer; the KV is right.",
        (
            Variant("head_record", "a record of the HEAD buffer", Hook.BEFORE_PLAN, (Sighting(_CHAIN, ("HEAD",)),), ""),
            Variant("tail_record", "a record of the TAIL buffer", Hook.BEFORE_PLAN, (Sighting(_CHAIN, _DATA),), ""),
        ),
    ),
)
