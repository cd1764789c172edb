"""A snapshot file that was damaged or made up is refused with the name of what is wrong; nothing is computed from it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kvcanary import snapshot
from kvcanary.analysis.snapshot_log import read_snapshots
from kvcanary.errors import ImportTextError
from tests.test_snapshot import SLOTS, Server

FULL = {"kind": "FULL", "token_offset": 0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Server().save(tmp_path / "sound")
    return tmp_path / "sound"


def spoil(path: Path, tensors: dict[str, torch.Tensor | None], metadata: dict[str, Any]) -> None:
    """Put other tensors and metadata into a snapshot; None takes one out."""
    with safe_open(path, framework="pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys()} | tensors  # noqa: SIM118 (safe_open has no iterator)
        facts = {**file.metadata(), **metadata}
    save_file(
        {name: tensor for name, tensor in kept.items() if tensor is not None},
        path,
        metadata={name: value for name, value in facts.items() if value is not None},
    )


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"groups": None}, "metadata 'groups' must be a JSON list, got ''"),
        ({"groups": "[" * 100_000}, "metadata 'groups' must be a JSON list"),
        ({"groups": '{"kind": "FULL"}'}, "metadata 'groups' must be a JSON list"),
        ({"groups": "[5]"}, "groups must be a list of at most 64 objects"),
        ({"groups": json.dumps([FULL] * 65)}, "groups must be a list of at most 64 objects"),
        ({"groups": json.dumps([{"kind": "HEAD", "token_offset": 0}])}, "groups[0].kind must be one of FULL/SWA, got 'HEAD'"),
        ({"groups": json.dumps([{"kind": "FULL"}])}, "groups[0].token_offset must be a whole number from 0 to 1, got 'None'"),
        ({"groups": json.dumps([FULL, FULL])}, "groups[1] must have a canary buffer with at least one slot"),
        ({"labels": "7"}, "metadata 'labels' must be a JSON dict, got '7'"),
        ({"hash_mode": "3"}, "hash_mode must be a whole number from 0 to 2, got '3'"),
        ({"ring_total": None}, "ring_total must be a whole number"),
        ({"ring_total": "-1"}, "ring_total must be a whole number"),
        ({"ring_total": "9" * 5000}, "ring_total must be a whole number"),
        ({"swa_window": "\u0663"}, "swa_window must be a whole number"),
    ],
)
def test_damaged_metadata(path: Path, metadata: dict[str, Any], said: str) -> None:
    spoil(path, {}, metadata)
    with pytest.raises(ImportTextError) as caught:
        snapshot.load(path)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"0.k_tail": torch.zeros((SLOTS, 33), dtype=torch.uint8)}, "0.k_tail must be torch.uint8 [48, 32], got torch.uint8 [48, 33]"),
        ({"0.k_tail": torch.zeros((SLOTS - 1, 32), dtype=torch.uint8)}, "0.k_tail must be torch.uint8 [48, 32]"),
        ({"0.k_tail": torch.zeros((SLOTS, 4), dtype=torch.int64)}, "0.k_tail must be torch.uint8"),
        ({"0.k_head": torch.zeros(32, dtype=torch.uint8), "0.k_tail": None}, "0.k_head must be torch.uint8 [any, 32]"),
        ({"0.k_head": torch.zeros((0, 32), dtype=torch.uint8), "0.k_tail": None}, "at least one slot"),
        ({"0.k_head": None, "0.k_tail": None}, "groups[0] must have a canary buffer"),
        ({"0.source_k.0": torch.zeros(SLOTS, dtype=torch.uint8)}, "0.source_k.0 must be torch.uint8 [48, any]"),
        ({"0.full_to_swa": torch.zeros(SLOTS, dtype=torch.int32)}, "0.full_to_swa must be torch.int64 [any]"),
        ({"violation_ring": torch.zeros((4, 7), dtype=torch.int64)}, "violation_ring must be torch.int64 [any, 8]"),
        ({"seq_lens": None}, "belong together, got req_to_token, req_pool_indices alone"),
        ({"seq_lens": torch.tensor([5])}, "seq_lens must be torch.int64 [2], got torch.int64 [1]"),
        ({"seq_lens": torch.tensor([5, -1])}, "seq_lens must be from 0 to 8, as req_to_token is [4, 8]"),
        ({"seq_lens": torch.tensor([1 << 60, 1 << 60])}, "seq_lens must be from 0 to 8"),
        ({"req_pool_indices": torch.tensor([1, 4])}, "req_pool_indices must be from 0 to 3"),
        ({"req_pool_indices": torch.tensor([2, 2])}, "req_pool_indices must name each row once"),
    ],
)
def test_damaged_tensors(path: Path, tensors: dict[str, torch.Tensor | None], said: str) -> None:
    spoil(path, tensors, {})
    with pytest.raises(ImportTextError) as caught:
        snapshot.load(path)
    assert said in str(caught.value)


def test_a_cell_out_of_the_pool_is_refused_by_the_name_that_the_user_knows(path: Path) -> None:
    table = torch.zeros((4, 8), dtype=torch.int32)
    table[1, :5], table[2, :4] = torch.tensor([5, 6, SLOTS, 8, 9]), torch.tensor([5, 6, 20, 21])
    spoil(path, {"req_to_token": table}, {})
    with pytest.raises(ImportTextError, match=r"snapshot upload\.safetensors cannot be verified: req_to_token leads to slot 48 in 1 cells"):
        read_snapshots([("upload.safetensors", path)])


def test_the_content_of_a_file_is_read_as_the_file_is(path: Path) -> None:
    [of_file], [of_bytes] = (snapshot.verify(snapshot.load(source)) for source in (path, path.read_bytes()))
    assert (of_bytes.chained, of_bytes.bytes_only, of_bytes.kind) == (of_file.chained, of_file.bytes_only, of_file.kind)
    for content in (b"", b"12345678", path.read_bytes()[:-1], (1 << 62).to_bytes(8, "little") + b"{}"):
        with pytest.raises(ImportTextError, match=r"^snapshot upload cannot be read"):
            snapshot.load(content, "upload")


def test_requests_on_the_padding_row_are_not_counted(path: Path) -> None:
    spoil(path, {"req_pool_indices": torch.tensor([1, 2, 0, 0, 0]), "seq_lens": torch.tensor([5, 4, 8, 8, 8])}, {})
    [check] = snapshot.verify(snapshot.load(path))
    assert (check.chained, len(check.rows)) == (9, 0)


def test_a_group_with_one_buffer_has_nothing_that_could_differ(path: Path) -> None:
    spoil(path, {"0.k_head": None}, {})
    [check] = snapshot.verify(snapshot.load(path))
    assert (check.chained, len(check.unlike)) == (9, 0)


def test_a_header_that_promises_more_than_there_is(tmp_path: Path) -> None:
    header = json.dumps({"0.k_tail": {"dtype": "U8", "shape": [1 << 40, 32], "data_offsets": [0, 1 << 45]}}).encode()
    path = tmp_path / "bomb"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
    with pytest.raises(ImportTextError, match="cannot be read"):
        snapshot.load(path)
