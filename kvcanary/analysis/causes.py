"""The causes that a log can point to: what each means, what would confirm it, which flag helps, and which public report is like it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Mechanisms that leave different marks in a log. Faults that leave the same marks share one."""

    WRONG_MAPPING = "wrong_mapping"
    KV_BYTES_CHANGED = "kv_bytes_changed"
    CACHED_BYTES_CHANGED = "cached_bytes_changed"
    TRANSFER_INCOMPLETE = "transfer_incomplete"
    STALE_RECORD = "stale_record"
    POSITION_WRONG = "position_wrong"
    TOKEN_WRONG = "token_wrong"
    CANARY_OVERWRITTEN = "canary_overwritten"
    RECORD_BIT_FLIP = "record_bit_flip"
    SWA_SWEEP_NOISE = "swa_sweep_noise"
    CANARY_SETTING = "canary_setting"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseText:
    """Words for one cause; flags are whole command-line texts or environment variables, references are public threads."""

    title: str
    meaning: str
    confirm: tuple[str, ...]
    flags: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


_REAL_DATA = "--kv-canary-real-data all"
_SWEEP = "--kv-canary-sweep-interval 100"
_TOKEN_ASSERT = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=1"

CAUSE_TEXTS: dict[Cause, CauseText] = {
    Cause.WRONG_MAPPING: CauseText(
        title="Wrong mapping or slot reuse",
        meaning="A request reads a slot that holds another request's record: a wrong cell in the request table, a slot with two "
        "owners, a slot that its previous owner wrote after it was freed, or a transferred page that arrived in another page's place.",
        confirm=(
            "Look up the stored token and position of the first slot in the other requests of that step: its owner has that token there.",
            f"Run again with {_TOKEN_ASSERT}: verify_token joins the chain reason at the same slot.",
            "Turn the radix cache off (--disable-radix-cache). If the reports stop, a node kept slots that were freed.",
        ),
        flags=("--kv-canary raise", "--disable-radix-cache", "--disable-overlap-schedule", _TOKEN_ASSERT),
        references=("sgl-project/sglang#23392", "sgl-project/sglang#22819"),
    ),
    Cause.KV_BYTES_CHANGED: CauseText(
        title="KV bytes changed after they were written",
        meaning="The records are right and the hashed K bytes of layer 0 are not those that TAIL hashed: something wrote into live KV "
        "(a replayed graph with stale addresses, a padding row, an address that wraps, a late copy), or memory is faulty.",
        confirm=(
            f"Run with {_REAL_DATA}: partial sees 16 bytes for each slot only.",
            "Turn CUDA graphs off (--disable-cuda-graph). If the reports stop, a captured address is stale.",
            "Compare the slots with the padding rows and with slot numbers times row bytes above 2^31.",
            "If one GPU alone reports, read its ECC counters and move the rank to another GPU.",
        ),
        flags=(_REAL_DATA, "--disable-cuda-graph", _SWEEP),
        references=("sgl-project/sglang#28971",),
    ),
    Cause.CACHED_BYTES_CHANGED: CauseText(
        title="Cached slots changed while no request used them",
        meaning="Only the sweep sees it: bytes or records of slots that the radix tree holds were changed between two uses. The next "
        "request with that prefix would have read them.",
        confirm=(
            "Shorten --kv-canary-sweep-interval: the time between the last clean sweep and the first report holds the write.",
            "Match that time with host-tier writes, evictions and weight updates.",
        ),
        flags=("--kv-canary-sweep-interval 1", _REAL_DATA),
        references=("sgl-project/sglang#26813",),
    ),
    Cause.TRANSFER_INCOMPLETE: CauseText(
        title="Transfer or load late or incomplete",
        meaning="Slots that came from another server (prefill to decode) or from a host or storage tier are not whole: bytes or records "
        "of a run of slots had not arrived when a request read them.",
        confirm=(
            "Look at the prefill side: its log is clean for the same request when the transfer is at fault.",
            "With a host or storage tier, run without it: if the reports stop, the load was not whole.",
            "Compare the run of slots with the page size and with the transfer's block size.",
            "Delay the first decode step, or send one request at a time. If the reports stop, completion is signalled too early.",
        ),
        flags=(_REAL_DATA, "--disaggregation-transfer-backend"),
        references=("sgl-project/sglang#28971", "sgl-project/sglang#39229"),
    ),
    Cause.STALE_RECORD: CauseText(
        title="Stale or missing canary record",
        meaning="The slot's record was never written for this content: zeros, or records of a previous owner while the KV came back by "
        "another way. SGLang does not move canaries with the host tier, so a load-back leaves them behind.",
        confirm=(
            "Run without --enable-hierarchical-cache. If the reports stop, the KV may be right and only its canary was missing.",
            "Check whether the first report follows a host-tier hit of the same prefix.",
        ),
        flags=("--enable-hierarchical-cache (leave it out)",),
        references=("sgl-project/sglang#33656", "sgl-project/sglang#30098", "sgl-project/sglang#32476"),
    ),
    Cause.POSITION_WRONG: CauseText(
        title="Wrong position for the right slot",
        meaning="Tokens were written with a position that does not follow the one before: positions fed to the model are shifted, so "
        "rotary embeddings are wrong although slots and tokens are right.",
        confirm=(
            "Compare positions of the first bad step with sequence lengths: a constant difference over all requests is a shift.",
            "Turn speculative decoding off. If the reports stop, the draft path increments positions at the wrong time.",
            "Look whether all reports lie at the first token of a chunk: then the seed slot may be wrong instead of the position.",
        ),
        flags=("--speculative-algorithm (leave it out)", "--chunked-prefill-size -1"),
        references=("sgl-project/sglang#25015",),
    ),
    Cause.TOKEN_WRONG: CauseText(
        title="Wrong token in the right slot",
        meaning="Slot, position and chain agree and the token id is not the one of the request: the input of the forward was wrong.",
        confirm=(
            "Decode both token ids: two that mirror each other in two requests were exchanged.",
            "With speculation and chunked prefill, check whether the position is the last of a chunk.",
        ),
        flags=(_TOKEN_ASSERT, "SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT=1"),
        references=("sgl-project/sglang#26329", "sgl-project/sglang#26800", "sgl-project/sglang#28254"),
    ),
    Cause.CANARY_OVERWRITTEN: CauseText(
        title="Canary memory overwritten in one buffer",
        meaning="Only one of the two buffers (HEAD or TAIL) disagrees. A mapping fault hits both, so something wrote into that "
        "buffer, or one of its launches was missed.",
        confirm=(
            "Save a snapshot (kvcanary.snapshot.save) and compare the HEAD and TAIL records of the slot.",
            "Check what is allocated next to the canary buffers; run under compute-sanitizer.",
        ),
        flags=("--kv-canary raise",),
    ),
    Cause.RECORD_BIT_FLIP: CauseText(
        title="One bit of a canary record flipped",
        meaning="Stored and expected value differ in one bit. Any real change of history changes about 32 bits of the hash, so this is a "
        "flip in memory and says nothing about the software.",
        confirm=("Read the GPU's ECC and remapped-row counters (nvidia-smi -q -d ECC,ROW_REMAPPER).", "Move the rank to another GPU."),
    ),
    Cause.SWA_SWEEP_NOISE: CauseText(
        title="Chain mismatches of the window pool's sweep",
        meaning="Many chain mismatches come from SWEEP over the sliding-window group alone. Earlier builds printed such rows without any "
        "corruption; they also fill the ring and hide real ones.",
        confirm=("Run with --kv-canary-sweep-interval 0. If HEAD and TAIL stay silent, it was noise.", "Raise the ring for the test."),
        flags=("--kv-canary-sweep-interval 0", "SGLANG_KV_CANARY_RING_CAPACITY=65536"),
    ),
    Cause.CANARY_SETTING: CauseText(
        title="The canary's health check stopped the server",
        meaning="A launch that the check expects did not run between two of its samples. This is a setting or an unsupported path of "
        "the canary itself and no corruption.",
        confirm=("Set --kv-canary-sweep-interval to 100 or less: any larger interval ends like this sooner or later.",),
        flags=("--kv-canary-sweep-interval 100",),
    ),
    Cause.UNKNOWN: CauseText(
        title="No known cause fits",
        meaning="The rows do not make one of the known patterns.",
        confirm=("Save a snapshot (kvcanary.snapshot.save) at the first report.", f"Run again with {_REAL_DATA} and {_TOKEN_ASSERT}."),
    ),
}
