"""A snapshot of SGLang's own buffer groups, stamped by SGLang's own reference, verifies clean offline, and damage is found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvcanary import snapshot
from tests.conformance.sglang_wheel import WheelUnavailable, load, load_kernel

SLOTS = 24


@pytest.fixture(scope="module")
def sglang() -> SimpleNamespace:
    try:
        kernels = {name: load_kernel(name) for name in ("consts", "verify", "write", "write_ref")}
        return SimpleNamespace(**kernels, buffer_group=load("sglang.srt.kv_canary.buffer_group"))
    except WheelUnavailable as error:
        pytest.skip(str(error))


def stamped_group(sglang: SimpleNamespace, slots: list[int], tokens: list[int]):
    pool = torch.arange(SLOTS * 64, dtype=torch.int64).remainder(251).to(torch.uint8).view(SLOTS, 64) + 1
    source = sglang.verify.RealKvSource(tensor=pool, page_size=1, num_bytes_per_token=64, read_bytes=64)
    group = sglang.buffer_group.CanaryBufferGroup(
        kind=sglang.buffer_group.PoolKind.FULL,
        **{name: torch.zeros((SLOTS, 32), dtype=torch.uint8) for name in snapshot.BUFFER_NAMES},
        real_kv_sources_k=(source,),
        real_kv_sources_v=(source,),
        swa_index_lut=None,
        kv_token_id_vs_position_offset=0,
    )
    count = len(slots)
    plan = sglang.write.WritePlan(
        write_offsets=torch.tensor([0, count]),
        write_seed_slot_indices=torch.tensor([-1]),
        write_num_valid_reqs=torch.tensor([1], dtype=torch.int32),
    )
    for name in snapshot.BUFFER_NAMES:
        half, place = name.split("_")
        context = sglang.verify.VerifyOrWriteContext(
            canary_buf=getattr(group, name),
            kernel_kind=sglang.verify.CanaryLaunchTag[f"{place.upper()}_{half.upper()}_FULL"],
            violation_ring=torch.zeros((4, 8), dtype=torch.int64),
            violation_write_index=torch.zeros(1, dtype=torch.int32),
            slot_run_counter=torch.zeros(1, dtype=torch.int64),
            kernel_run_counter=torch.zeros(1, dtype=torch.int64),
            real_kv_sources=(source,) if place == "tail" else (),
            real_kv_hash_mode=sglang.consts.RealKvHashMode.ALL,
            enable_chain_position_assert=torch.zeros(1, dtype=torch.int32),
        )
        sglang.write_ref.launch_canary_write_kernel_torch_reference(
            context=context,
            plan=plan,
            input_ids=torch.tensor(tokens),
            positions=torch.arange(count),
            out_cache_loc=torch.tensor(slots),
            enable_write_input_assert=False,
            expected_input_tokens=None,
            expected_input_positions=None,
        )
    return group, pool


def test_groups_of_sglang_are_saved_and_verified(sglang: SimpleNamespace, tmp_path: Path) -> None:
    slots, tokens = [3, 9, 4, 17], [700, 701, 702, 703]
    group, pool = stamped_group(sglang, slots, tokens)
    table = torch.zeros((3, 8), dtype=torch.int32)
    table[2, :4] = torch.tensor(slots, dtype=torch.int32)
    arguments = {
        "buffer_groups": [group],
        "real_kv_hash_mode": sglang.consts.RealKvHashMode.ALL,
        "req_to_token": table,
        "req_pool_indices": torch.tensor([2]),
        "seq_lens": torch.tensor([4]),
    }
    path = tmp_path / "rank.safetensors"
    snapshot.save(path, **arguments)
    [clean] = snapshot.verify(snapshot.load(path))
    assert (len(clean.rows), clean.chained, len(clean.unlike)) == (0, 4, 0)
    pool[4, 40] ^= 0xFF
    snapshot.save(path, **arguments)
    [damaged] = snapshot.verify(snapshot.load(path))
    assert sorted(row[0] for row in damaged.rows.tolist()) == [2, 3]
    assert {(row[1], row[7]) for row in damaged.rows.tolist()} == {(4, 4)}
