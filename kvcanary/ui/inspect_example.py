"""A small invented log, so that the empty page can show what it makes of one."""

from __future__ import annotations

from itertools import pairwise

from kvcanary.layout import CHAIN_START, mix3

_SLOTS, _TOKENS = (4101, 4102, 4103, 4104, 4105, 4106), (1120, 87, 9931, 15, 2044, 310)
_OTHER_TOKENS, _WRONG_SLOT = (640, 12, 78, 5150), 9218
_RANKS = ("TP0", "TP1")


def example_log() -> str:
    """Two ranks; the fourth cell of a request points at another request's slot, so that slot fails and its successor echoes it."""
    lines = [f"[2026-01-15 03:12:0{second} {rank}] {_stats(second)}" for second in range(1, 4) for rank in _RANKS]
    other = _chain(_OTHER_TOKENS)[3]
    records = dict(zip(_SLOTS, _chain(_TOKENS), strict=True)) | {_WRONG_SLOT: other}
    row = (*_SLOTS[:3], _WRONG_SLOT, *_SLOTS[4:])
    total = 0
    for step, second in ((311, 11), (312, 12), (314, 14)):
        for place in ("HEAD", "TAIL"):
            for before, slot in pairwise(row[2:5]):
                total += 1
                for rank in _RANKS:
                    message = _message(place, slot, records[slot], mix3(*records[before]), total, step)
                    lines.append(f"[2026-01-15 03:12:{second} {rank}] {message}")
    return "\n".join(lines) + "\n"


def _chain(tokens: tuple[int, ...]) -> list[tuple[int, int, int]]:
    records, running = [], CHAIN_START
    for position, token in enumerate(tokens):
        records.append((running, token, position))
        running = mix3(running, token, position)
    return records


def _stats(number: int) -> str:
    return f"[canary] step={number * 100} protected_tokens={number * 52_000} sweep_passes={number} violations=0 launch_tags_active=6/6"


def _message(place: str, slot: int, record: tuple[int, int, int], expected: int, total: int, step: int) -> str:
    stored, token, position = record
    tag, kind = f"{place}_K_FULL", f"per_forward_{place.lower()}_k_full"
    return "\n".join(
        (
            f"kv_canary violation: launch_tag={tag} fail_reason=verify_chain_hash slot_idx={slot} position={position} stored_token={token} "
            f"expected_token=-1 stored_chain_hash=0x{stored:016x} expected_aux=0x{expected:016x}",
            f"KV cache canary violation detected (kernel_kind={tag}, slot_idx={slot}, position={position})",
            f"canary_kind:       {kind}",
            "  fail_reasons: verify_chain_hash",
            f"  stored:   token_id={token}   position={position} prev_hash=0x{stored:016x}",
            f"  expected: prev_hash=0x{expected:016x}",
            f"  total_violations={total} ring_overflow=False step_when_pumped={step}",
        )
    )
