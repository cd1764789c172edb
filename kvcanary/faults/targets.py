"""What a fault hits: the first question about a corruption, and how the matrix of a campaign is grouped."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from kvcanary.faults.catalogue import find
from kvcanary.faults.ops import OpKind


class Target(StrEnum):
    """The thing that is wrong, in the order in which a forward meets it."""

    TABLE = "Request table, window translation"
    INPUT = "Token or position of a write"
    SLOT = "A live slot: records and KV bytes"
    BYTES = "KV bytes alone"
    RECORD = "Canary records alone"
    ELSEWHERE = "Nothing in a slot"


_BY_KIND: Mapping[str, Target] = {
    "late_write_after_free": Target.SLOT,
    "slot_alias": Target.TABLE,
    "stale_row": Target.TABLE,
    "page_table_race": Target.SLOT,
    "position_shift": Target.INPUT,
    "padding_slot": Target.BYTES,
    "spec_rollback": Target.INPUT,
    "swa_eviction": Target.SLOT,
    "pd_transfer": Target.SLOT,
    "tier_reload": Target.BYTES,
    "storage_visible_garbage": Target.BYTES,
    "stale_prefix_hit": Target.SLOT,
    "layout_mismatch": Target.BYTES,
    "address_overflow": Target.BYTES,
    "payload_bytes": Target.BYTES,
    "token_swap": Target.INPUT,
    "draft_pool": Target.INPUT,
    "canary_memory": Target.RECORD,
}
_EXCEPTIONS: Mapping[tuple[str, str], Target] = {
    ("late_write_after_free", "bytes_only"): Target.BYTES,
    ("slot_alias", "two_requests"): Target.SLOT,
    ("page_table_race", "bytes_only"): Target.BYTES,
    ("spec_rollback", "past_the_reservation"): Target.SLOT,
    ("swa_eviction", "mapping_cleared"): Target.TABLE,
    ("pd_transfer", "bytes_late"): Target.BYTES,
    ("pd_transfer", "cut_after_k_layers"): Target.RECORD,
    ("pd_transfer", "first_token_swapped"): Target.INPUT,
    ("tier_reload", "records_left_behind"): Target.RECORD,
}
# The first operation of an injection says what it breaks.
OP_TARGETS: Mapping[OpKind, Target] = {
    OpKind.SET_TABLE: Target.TABLE,
    OpKind.SET_MAPPING: Target.TABLE,
    OpKind.SWAP_TOKEN: Target.INPUT,
    OpKind.SHIFT_POSITION: Target.INPUT,
    OpKind.FOREIGN_WRITE: Target.SLOT,
    OpKind.REDIRECT_WRITE: Target.SLOT,
    OpKind.FLIP_BYTES: Target.BYTES,
    OpKind.WRITE_BYTES: Target.BYTES,
    OpKind.FILL_BYTES: Target.BYTES,
    OpKind.PERMUTE_BYTES: Target.BYTES,
    OpKind.SET_BYTES_OF: Target.BYTES,
    OpKind.REDIRECT_BYTES: Target.BYTES,
    OpKind.SKIP_BYTES: Target.BYTES,
    OpKind.PUT_RECORD: Target.RECORD,
    OpKind.CLEAR_RECORD: Target.RECORD,
    OpKind.FLIP_RECORD: Target.RECORD,
}


def target(kind: str, variant: str) -> Target:
    """What a variant hits; one that changes nothing in memory hits nothing in a slot. ConfigError for an unknown one."""
    if not find(kind, variant).in_memory:
        return Target.ELSEWHERE
    return _EXCEPTIONS.get((kind, variant)) or _BY_KIND[kind]
