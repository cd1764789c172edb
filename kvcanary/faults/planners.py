"""The planner of each fault that has something to inject: data, like the catalogue that describes them."""

from __future__ import annotations

from collections.abc import Mapping

from kvcanary.faults import planners_content as content
from kvcanary.faults import planners_inputs as inputs
from kvcanary.faults.memory import Strip
from kvcanary.faults.ops import Hook, OpKind
from kvcanary.faults.planning import Planner

_BF16_NAN = 0x7FC0
_PREV_HASH_BYTE = 16
_TAIL_BUFFERS = ("k_tail", "v_tail")

PLANNERS: Mapping[tuple[str, str], Planner] = {
    ("late_write_after_free", "with_records"): content.overwrite(OpKind.FOREIGN_WRITE),
    ("late_write_after_free", "bytes_only"): content.overwrite(OpKind.WRITE_BYTES),
    ("slot_alias", "two_requests"): inputs.redirect(OpKind.REDIRECT_WRITE, lasting_cell=True),
    ("slot_alias", "wrong_cell"): inputs.set_cell,
    ("slot_alias", "cell_to_slot_0"): inputs.zero_cell,
    ("slot_alias", "seed_at_slot_0"): inputs.zero_seed,
    ("stale_row", "partly_overwritten"): inputs.stale_row(whole=False),
    ("stale_row", "fully_overwritten"): inputs.stale_row(whole=True),
    ("page_table_race", "records_and_bytes"): inputs.redirect(OpKind.REDIRECT_WRITE),
    ("page_table_race", "bytes_only"): inputs.redirect(OpKind.REDIRECT_BYTES),
    ("position_shift", "one_token"): inputs.shift(first=False),
    ("position_shift", "first_token"): inputs.shift(first=True),
    ("padding_slot", "live_slot"): content.padding,
    ("padding_slot", "slot_0"): content.padding_slot_0,
    ("spec_rollback", "past_the_reservation"): inputs.redirect(OpKind.REDIRECT_WRITE),
    ("spec_rollback", "rejected_token_kept"): inputs.wrong_token,
    ("swa_eviction", "reused_inside_window"): content.window_reused,
    ("swa_eviction", "mapping_cleared"): inputs.window_cleared,
    ("pd_transfer", "bytes_late"): content.cells(2, (OpKind.WRITE_BYTES, {})),
    ("pd_transfer", "page_missing"): content.cells(2, (OpKind.CLEAR_RECORD, {}), (OpKind.WRITE_BYTES, {})),
    ("pd_transfer", "cut_after_k_layers"): content.cells(2, (OpKind.CLEAR_RECORD, {"buffers": _TAIL_BUFFERS})),
    ("pd_transfer", "first_token_swapped"): inputs.wrong_token,
    ("tier_reload", "records_left_behind"): content.foreign_records(OpKind.PUT_RECORD, reloaded=True),
    ("pd_transfer", "pages_swapped"): content.arrived(1, from_other=False),
    ("pd_transfer", "other_request"): content.arrived(0, from_other=True),
    ("tier_reload", "wrong_bytes"): content.cells(1, (OpKind.WRITE_BYTES, {}), reloaded=True),
    ("tier_reload", "partial_copy"): content.cells(3, (OpKind.FLIP_BYTES, {"byte": 32, "count": 32}), reloaded=True),
    ("tier_reload", "early_read"): content.early_read,
    ("storage_visible_garbage", "half_loaded"): content.cells(3, (OpKind.WRITE_BYTES, {}), reloaded=True),
    ("stale_prefix_hit", "node_kept_after_free"): content.foreign_records(OpKind.FOREIGN_WRITE),
    ("layout_mismatch", "head_of_row"): content.payload(OpKind.PERMUTE_BYTES, byte=0, count=32),
    ("layout_mismatch", "tail_of_row"): content.payload(OpKind.PERMUTE_BYTES, byte=16, count=32),
    ("address_overflow", "store_wraps"): inputs.redirect(OpKind.REDIRECT_BYTES),
    ("payload_bytes", "bit_flip"): content.payload(OpKind.FLIP_BYTES, byte=3, mask=0x10),
    ("payload_bytes", "later_bytes"): content.payload(OpKind.FLIP_BYTES, byte=24, count=16),
    ("payload_bytes", "nan"): content.whole_row(_BF16_NAN),
    ("payload_bytes", "zeroed"): content.whole_row(0),
    ("payload_bytes", "stuck"): content.stuck,
    ("payload_bytes", "v_row"): content.payload(OpKind.FLIP_BYTES, strip=Strip.V0),
    ("payload_bytes", "other_layer"): content.payload(OpKind.FLIP_BYTES, strip=Strip.K1),
    ("payload_bytes", "just_written"): content.flip_written(Hook.AFTER_TAIL),
    ("payload_bytes", "cached_only"): content.flip_cached,
    ("payload_bytes", "bad_before_hash"): content.flip_written(Hook.MODEL_FORWARD),
    ("token_swap", "sampler_exit"): inputs.swap_tokens,
    ("draft_pool", "position_ahead"): inputs.draft_position,
    ("draft_pool", "chunk_end_token"): inputs.draft_chunk_end(in_output=False),
    ("draft_pool", "chunk_end_after_retraction"): inputs.draft_chunk_end(in_output=True),
    ("canary_memory", "head_record"): content.payload(OpKind.FLIP_RECORD, byte=_PREV_HASH_BYTE, buffers=("k_head",)),
    ("canary_memory", "tail_record"): content.payload(OpKind.FLIP_RECORD, byte=_PREV_HASH_BYTE, buffers=("k_tail",)),
}
