"""The loop as a whole: every mechanism keeps the conservation law, reads what was written, and repeats exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from kvcanary.errors import ServingError
from kvcanary.serving.engine import OWNER_CACHED, OWNER_FREE, OWNER_IN_FLIGHT, OWNER_PADDING, ServingEngine
from kvcanary.serving.events import EventKind, MoveKind
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.request import Request, RequestSpec
from kvcanary.serving.step import Step, StepMode
from tests.serving.conftest import shared_prefixes, small_options
from tests.serving.shadow import ShadowMemory


def spec(prompt_len: int, output_len: int, first: int = 1, **fields: Any) -> RequestSpec:
    return RequestSpec(prompt=np.arange(first, first + prompt_len, dtype=np.int32), output_len=output_len, **fields)


@pytest.mark.parametrize("seed", [0, 1])
def test_all_requests_finish_and_every_step_reads_what_was_written(mechanism: Callable[..., ServingOptions], seed: int) -> None:
    engine = ServingEngine(mechanism(seed=seed), shared_prefixes(40, seed))
    shadow = ShadowMemory(engine)
    for step in engine.steps():
        shadow.run(step)
        engine.check()
        assert step.index < 5000
    shadow.sweep(engine)
    assert (engine.finished, engine.rejected) == (40, 0)
    assert engine.check().held == engine.check().in_flight == 0


def snapshot(step: Step) -> tuple[object, ...]:
    arrays = (step.req_pool_indices, step.prefix_lens, step.extend_seq_lens, step.tokens, step.positions, step.out_slots, step.rids)
    return (step.index, step.mode, *(array.tobytes() for array in arrays), tuple(str(event.to_dict()) for event in step.events))


def test_equal_seeds_give_equal_steps_and_another_seed_does_not(mechanism: Callable[..., ServingOptions]) -> None:
    first, again, other = (
        [snapshot(step) for step in ServingEngine(mechanism(seed=seed), shared_prefixes(20, seed)).steps()] for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_batches_stay_within_the_launch_capacities(mechanism: Callable[..., ServingOptions]) -> None:
    options = mechanism()
    requests = max(options.req_to_token_pool_size, options.cuda_graph_max_bs or 0)
    for step in ServingEngine(options, shared_prefixes(40, 5)).steps():
        assert len(step.req_pool_indices) <= requests
        if step.mode is StepMode.EXTEND and options.chunked_prefill_size is not None:
            assert len(step.tokens) <= options.prefill_budget
        assert len(step.tokens) == step.extend_seq_lens[step.req_pool_indices > 0].sum()


def test_a_prompt_is_cut_into_chunks_and_the_rest_of_the_budget_goes_to_the_next() -> None:
    engine = ServingEngine(small_options(), [spec(70, 2), spec(20, 2, first=500)])
    extends = [step.extend_seq_lens.tolist() for step in engine.steps() if step.mode is StepMode.EXTEND]
    assert extends == [[32], [32], [6, 20]]


def test_without_chunking_a_prompt_above_the_budget_runs_alone() -> None:
    engine = ServingEngine(
        small_options(chunked_prefill_size=None, max_prefill_tokens=24), [spec(10, 1), spec(60, 1, 300), spec(9, 1, 600)]
    )
    assert [step.extend_seq_lens.tolist() for step in engine.steps()] == [[10], [60], [9]]


def test_a_cached_prefix_is_not_computed_again_but_the_last_token_always_is() -> None:
    engine = ServingEngine(small_options(), [spec(30, 1), spec(30, 1, arrival_s=1.0), spec(34, 1, arrival_s=2.0)])
    assert [(int(step.prefix_lens[0]), len(step.tokens)) for step in engine.steps()] == [(0, 30), (29, 1), (30, 4)]


def test_a_prefix_is_not_shared_across_namespaces() -> None:
    requests = [spec(30, 1), RequestSpec(prompt=np.arange(1, 31, dtype=np.int32), output_len=1, arrival_s=1.0, namespace=4)]
    assert [int(step.prefix_lens[0]) for step in ServingEngine(small_options(), requests).steps()] == [0, 0]


def test_equal_prompts_of_one_batch_end_on_the_same_slots() -> None:
    engine = ServingEngine(small_options(), [spec(12, 4), spec(12, 4)])
    prefill, decode = islice(engine.steps(), 2)
    assert len(set(prefill.out_slots.tolist())) == 24
    table = decode.req_to_token
    np.testing.assert_array_equal(table[decode.req_pool_indices[0], :12], table[decode.req_pool_indices[1], :12])
    (dedup,) = (event for event in decode.events if event.kind is EventKind.DEDUP)
    assert set(dedup.slots.tolist()) < set(prefill.out_slots.tolist())
    assert engine.check().cached == 12


def test_a_full_pool_sends_the_youngest_request_back_and_it_computes_its_output_again() -> None:
    engine = ServingEngine(
        small_options(pool_slot_count=60, max_seq_len_per_req=60, new_token_ratio=0.0), [spec(20, 25), spec(20, 25, first=400)]
    )
    steps, retracted = [], []
    for step in engine.steps():
        steps.append(step)
        retracted += [event for event in step.events if event.kind is EventKind.RETRACT]
    assert retracted
    again = [step for step in steps if step.mode is StepMode.EXTEND and step.rids.tolist() == [retracted[0].rid]]
    assert again
    assert again[0].prefix_lens[0] + again[0].extend_seq_lens[0] == retracted[0].count + 1 > 20
    assert engine.finished == 2


def test_rejected_drafts_are_written_and_their_slots_come_back() -> None:
    options = small_options(speculative_num_draft_tokens=4, draft_acceptance=0.0, radix_cache=False)
    engine = ServingEngine(options, [spec(10, 5)])
    steps, held = [], []
    while (step := engine.schedule()) is not None:
        steps.append(step)
        engine.complete()
        held.append(engine.check().held)
    assert held == [10, 11, 12, 13, 0]
    verify = [step for step in steps if step.mode is StepMode.TARGET_VERIFY]
    assert [step.prefix_lens.tolist() for step in verify] == [[10], [11], [12], [13]]
    assert all(len(step.tokens) == 4 for step in verify)
    assert [step.free_slots for step in verify] == [320 - 14, 320 - 15, 320 - 16, 320 - 17]
    for step in verify:
        right = step.tokens == step.expected_tokens[1, step.positions]
        assert right[0]
        assert not right[1:].any()
    assert engine.check().free == 320


def test_accepted_drafts_advance_by_the_whole_draft_and_stop_at_the_end() -> None:
    options = small_options(speculative_num_draft_tokens=4, draft_acceptance=1.0)
    verify = [step for step in ServingEngine(options, [spec(10, 8)]).steps() if step.mode is StepMode.TARGET_VERIFY]
    assert [step.prefix_lens.tolist() for step in verify] == [[10], [14]]


def test_window_slots_behind_the_window_come_back_while_the_request_runs() -> None:
    options = small_options(sliding_window=8, swa_pool_slot_count=100, max_seq_len_per_req=90, radix_cache=False)
    engine = ServingEngine(options, [spec(20, 30)])
    for step in engine.steps():
        if step.mode is StepMode.DECODE:
            assert step.full_to_swa is not None
            kept = np.count_nonzero(step.full_to_swa[step.req_to_token[1, : step.prefix_lens[0]]])
            assert kept == 8
    engine.check()


def test_an_evicted_prefix_comes_back_from_the_host() -> None:
    options = small_options(pool_slot_count=64, host_slot_count=200, max_seq_len_per_req=60)
    engine = ServingEngine(options, [spec(40, 2), spec(50, 2, first=300, arrival_s=1.0), spec(40, 2, arrival_s=2.0)])
    steps = list(engine.steps())
    moves = [move for step in steps for move in step.moves]
    assert [move.kind for move in moves][-1] is MoveKind.RELOAD
    reload = moves[-1]
    backup = next(move for move in moves if move.kind is MoveKind.BACKUP and move.host_slots[0] == reload.host_slots[0])
    np.testing.assert_array_equal(backup.host_slots[: len(reload.host_slots)], reload.host_slots)
    assert steps[-2].prefix_lens.tolist() == [39]


def test_an_aborted_transfer_keeps_its_slots_until_it_ends() -> None:
    options = small_options(disaggregation_mode="decode", radix_cache=False, transfer_delay_steps=5)
    engine = ServingEngine(options, [spec(8, 40)])
    engine.schedule()
    engine.complete()
    rid = engine.submit(spec(30, 4, first=200))
    engine.schedule()
    engine.complete()
    assert engine.check().in_flight == 30
    assert engine.abort(rid)
    assert engine.check().in_flight == 30
    for _ in range(6):
        engine.schedule()
        engine.complete()
    assert engine.check().in_flight == 0


def test_an_arrival_starts_to_decode_with_its_first_token_known() -> None:
    engine = ServingEngine(small_options(disaggregation_mode="decode", radix_cache=False), [spec(8, 3)])
    steps = list(engine.steps())
    (arrival,) = steps[0].moves
    assert arrival.kind is MoveKind.ARRIVAL
    np.testing.assert_array_equal(arrival.tokens, np.arange(1, 9))
    assert [(int(step.prefix_lens[0]), int(step.expected_valid_lens[0])) for step in steps] == [(8, 9), (9, 10)]


def test_a_prefill_instance_holds_the_prompt_until_it_was_sent() -> None:
    engine = ServingEngine(small_options(disaggregation_mode="prefill", radix_cache=False, transfer_delay_steps=3), [spec(8, 5)])
    engine.schedule()
    engine.complete()
    assert engine.check().in_flight == 8
    assert engine.schedule() is None
    assert engine.check().free == 320


@pytest.mark.parametrize(("overlap", "tokens"), [(False, [10, 1, 1]), (True, [10, 1, 1, 1])])
def test_overlap_runs_one_forward_past_the_end_and_keeps_nothing_of_it(overlap: bool, tokens: list[int]) -> None:
    engine = ServingEngine(small_options(overlap=overlap), [spec(10, 3)])
    assert [len(step.tokens) for step in engine.steps()] == tokens
    assert engine.check().cached == 12


def test_padding_rows_follow_the_real_ones_and_are_inert() -> None:
    engine = ServingEngine(small_options(cuda_graph_max_bs=8), [spec(5, 4, first) for first in (1, 100, 200)])
    decode = [step for step in engine.steps() if step.mode is StepMode.DECODE]
    assert {len(step.req_pool_indices) for step in decode} == {4}
    assert all(step.req_pool_indices[-1] == 0 and step.pad_tokens == 1 and len(step.tokens) == 3 for step in decode)


def test_a_rank_without_work_idles_along_with_the_others() -> None:
    engine = ServingEngine(small_options(dp_size=2), [spec(5, 2), spec(5, 2, first=50, arrival_s=0.2)])
    modes = Counter(step.mode for step in engine.steps())
    assert modes[StepMode.IDLE] > 3
    assert modes[StepMode.EXTEND] == 2


def test_a_request_that_can_never_finish_is_rejected_with_the_reason() -> None:
    engine = ServingEngine(small_options(), [spec(119, 2), spec(3, 2)])
    step = engine.schedule()
    assert step is not None
    (reject,) = (event for event in step.events if event.kind is EventKind.REJECT)
    assert reject.detail == "121 tokens, at most 120 fit"
    assert (engine.rejected, step.rids.tolist()) == (1, [2])


def test_aborting_frees_a_request_wherever_it_is() -> None:
    engine = ServingEngine(small_options(radix_cache=False), [spec(70, 9), spec(20, 9, first=300)])
    engine.schedule()
    engine.complete()
    assert engine.scheduler.chunked is not None
    assert engine.abort(1)
    assert engine.abort(2)
    assert not engine.abort(2)
    assert engine.check().free == 320
    assert engine.schedule() is None


def test_owners_name_every_slot() -> None:
    engine = ServingEngine(small_options(page_size=2), [spec(9, 6)])
    engine.schedule()
    engine.complete()
    owners = Counter(engine.owners().tolist())
    assert owners == {OWNER_PADDING: 2, OWNER_CACHED: 8, 1: 2, OWNER_FREE: 310}
    assert OWNER_IN_FLIGHT not in owners


def test_schedule_and_complete_alternate() -> None:
    engine = ServingEngine(small_options(), [spec(9, 2)])
    with pytest.raises(ServingError, match="no step is scheduled"):
        engine.complete()
    engine.schedule()
    with pytest.raises(ServingError, match="not completed yet"):
        engine.schedule()
    with pytest.raises(ServingError, match=r"call complete\(\) before abort"):
        engine.abort(1)


def test_mixed_chunk_decodes_along_with_a_prompt_and_takes_its_tokens_off_the_budget() -> None:
    options = small_options(enable_mixed_chunk=True, chunked_prefill_size=16)
    engine = ServingEngine(options, [spec(10, 9), spec(40, 2, first=300, arrival_s=0.03)])
    steps = [(step.mode, step.rids.tolist(), step.extend_seq_lens.tolist()) for step in islice(engine.steps(), 7)]
    assert steps == [
        (StepMode.EXTEND, [1], [10]),
        (StepMode.DECODE, [1], [1]),
        (StepMode.MIXED, [2, 1], [15, 1]),
        (StepMode.MIXED, [2, 1], [15, 1]),
        (StepMode.MIXED, [2, 1], [10, 1]),
        (StepMode.DECODE, [1, 2], [1, 1]),
        (StepMode.DECODE, [1], [1]),
    ]


def test_a_prompt_without_room_is_tried_again_when_something_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    options = small_options(pool_slot_count=60, max_seq_len_per_req=60, radix_cache=False, new_token_ratio=1.0, chunked_prefill_size=30)
    engine = ServingEngine(options, [spec(30, 5), spec(30, 5, first=400)])
    tried: list[tuple[int, int]] = []
    admit = engine.scheduler._admit

    def counted(request: Request, budget: int, kept_pages: int, *, alone: bool) -> int | None:
        tried.append((engine.step_index, request.rid))
        return admit(request, budget, kept_pages, alone=alone)

    monkeypatch.setattr(engine.scheduler, "_admit", counted)
    steps = [(step.mode, step.rids.tolist()) for step in engine.steps()]
    assert steps == [(StepMode.EXTEND, [1]), *[(StepMode.DECODE, [1])] * 4, (StepMode.EXTEND, [2]), *[(StepMode.DECODE, [2])] * 4]
    assert tried == [(0, 1), (1, 2), (5, 2)]


def test_ranks_fill_prefill_batches_up_with_tokens_and_decode_batches_with_rows() -> None:
    steps = list(ServingEngine(small_options(dp_size=3), shared_prefixes(20, 1)).steps())
    prefill = [step for step in steps if step.mode is StepMode.EXTEND]
    assert sum(step.pad_tokens > 0 for step in prefill) > 3
    for step in prefill:
        assert (step.req_pool_indices > 0).all()
        assert len(step.tokens) + step.pad_tokens <= 32
    decode = [step for step in steps if step.mode is StepMode.DECODE]
    assert all(step.pad_tokens == (step.req_pool_indices == 0).sum() for step in decode)
    assert sum(step.pad_tokens for step in decode) > 0
