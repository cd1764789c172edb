"""Snapshots: what is saved comes back, and offline verification finds planted damage and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from kvcanary import layout, snapshot
from kvcanary.cli import app
from kvcanary.errors import ContractError, ImportTextError
from kvcanary.kernels.types import RealKvSource
from kvcanary.layout import LaunchTag, RealKvHashMode, SlotStatus

SLOTS, PAGE, WIDTH, STRIDE = 48, 4, 32, 144


class Kind(IntEnum):
    FULL = 0
    SWA = 1


@dataclass
class Group:
    """The attributes of SGLang's CanaryBufferGroup."""

    kind: Kind
    k_head: torch.Tensor
    k_tail: torch.Tensor
    v_head: torch.Tensor | None = None
    v_tail: torch.Tensor | None = None
    real_kv_sources_k: tuple[RealKvSource, ...] = ()
    real_kv_sources_v: tuple[RealKvSource, ...] = ()
    swa_index_lut: torch.Tensor | None = None
    kv_token_id_vs_position_offset: int = 0


@dataclass
class Server:
    """One pool with two requests and a cached prefix, stamped by the plain-integer hash."""

    mode: RealKvHashMode = RealKvHashMode.ALL
    rows: dict[int, list[int]] = field(default_factory=lambda: {1: [5, 6, 7, 8, 9], 2: [5, 6, 20, 21]})
    cached: list[int] = field(default_factory=lambda: [30, 31, 32])

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        pool = torch.randint(1, 255, (SLOTS // PAGE, STRIDE), dtype=torch.uint8, generator=generator)
        self.source = RealKvSource(tensor=pool, page_size=PAGE, num_bytes_per_token=WIDTH, read_bytes=WIDTH)
        self.group = Group(
            kind=Kind.FULL,
            k_head=torch.zeros((SLOTS, 32), dtype=torch.uint8),
            k_tail=torch.zeros((SLOTS, 32), dtype=torch.uint8),
            real_kv_sources_k=() if self.mode is RealKvHashMode.NONE else (self.source,),
        )
        tokens = {1: [101, 102, 103, 104, 105], 2: [101, 102, 203, 204]}
        for row, slots in self.rows.items():
            self.stamp(slots, tokens[row])
        self.stamp(self.cached, [301, 302, 303])

    def stamp(self, slots: list[int], tokens: list[int]) -> None:
        for position, (slot, token, prev_hash) in enumerate(
            zip(slots, tokens, layout.chain_hashes(tokens, range(len(tokens))), strict=True)
        ):
            for buffer, real in ((self.group.k_head, 0), (self.group.k_tail, self.real_hash(slot))):
                values = [token, position, layout.to_signed(prev_hash), layout.to_signed(real)]
                buffer.view(torch.int64)[slot] = torch.tensor(values)

    def cell(self, slot: int) -> torch.Tensor:
        column = slot % PAGE * WIDTH
        return self.source.tensor[slot // PAGE, column : column + WIDTH]

    def real_hash(self, slot: int) -> int:
        if self.mode is RealKvHashMode.NONE:
            return 0
        data = bytes(self.cell(slot).tolist())
        return layout.combine_sources([layout.fold_bytes(data[:16] if self.mode is RealKvHashMode.PARTIAL else data)])

    def save(self, path: Path, **more: object) -> None:
        table = torch.zeros((4, 8), dtype=torch.int32)
        for row, slots in self.rows.items():
            table[row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
        arguments = {
            "buffer_groups": [self.group],
            "real_kv_hash_mode": int(self.mode),
            "req_to_token": table,
            "req_pool_indices": list(self.rows),
            "seq_lens": [len(slots) for slots in self.rows.values()],
            **more,
        }
        snapshot.save(path, **arguments)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank0.safetensors"


def slots_of(check: snapshot.GroupCheck) -> set[tuple[str, int, int]]:
    return {(LaunchTag(row[0]).name, row[1], row[7]) for row in check.rows.tolist()}


@pytest.mark.parametrize("mode", list(RealKvHashMode))
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_sound_pool_is_clean_and_covered(path: Path, mode: RealKvHashMode, backend: str) -> None:
    Server(mode).save(path)
    [check] = snapshot.verify(snapshot.load(path), backend=backend)
    assert len(check.rows) == 0
    assert len(check.unlike) == 0
    assert (check.chained, check.bytes_only) == (9, 0 if mode is RealKvHashMode.NONE else 3)
    status = check.status.tolist()
    assert [slot for slot in range(SLOTS) if status[slot] == SlotStatus.CLEAN] == [5, 6, 7, 8, 9, 20, 21] + (
        [] if not mode else [30, 31, 32]
    )
    assert status[30] == (SlotStatus.CLEAN if mode else SlotStatus.SKIPPED)
    assert (status[0], status[1]) == (SlotStatus.RESERVED, SlotStatus.FREE)


def test_changed_bytes_of_a_used_and_of_a_cached_slot(path: Path) -> None:
    server = Server()
    for slot in (8, 31):
        server.cell(slot)[20] ^= 0xFF
    server.save(path)
    [check] = snapshot.verify(snapshot.load(path))
    assert slots_of(check) == {("TAIL_K_FULL", 8, 4), ("TAIL_K_FULL", 31, 4)}
    assert check.status[8] == check.status[31] == SlotStatus.CORRUPTED


def test_padding_slot_may_hold_anything(path: Path) -> None:
    server = Server()
    server.group.k_tail.view(torch.int64)[0] = torch.tensor([7, 8, 9, 10])
    server.save(path)
    [check] = snapshot.verify(snapshot.load(path))
    assert (len(check.rows), len(check.unlike), check.bytes_only) == (0, 0, 3)


def test_partial_saves_and_sees_sixteen_bytes(path: Path) -> None:
    server = Server(RealKvHashMode.PARTIAL)
    server.cell(8)[20] ^= 0xFF
    server.cell(9)[3] ^= 0xFF
    server.save(path)
    loaded = snapshot.load(path)
    assert loaded.groups[0].sources["k"][0].shape == (SLOTS, 16)
    assert slots_of(snapshot.verify(loaded)[0]) == {("TAIL_K_FULL", 9, 4)}


def test_wrong_cell_and_record_in_one_buffer(path: Path) -> None:
    server = Server()
    server.rows[1][3] = 21
    server.group.k_head.view(torch.int64)[20, 0] = 999
    server.save(path)
    [check] = snapshot.verify(snapshot.load(path))
    found = slots_of(check)
    assert {("HEAD_K_FULL", 9, 1), ("TAIL_K_FULL", 9, 1)} <= found
    assert ("HEAD_K_FULL", 21, 1) in found
    assert ("TAIL_K_FULL", 21, 1) in found
    assert check.unlike.tolist() == [20]


def test_window_group_is_verified_inside_its_window(path: Path) -> None:
    server = Server(RealKvHashMode.NONE)
    mapping = torch.zeros(SLOTS + 1, dtype=torch.int64)
    mapping[8], mapping[9], mapping[20], mapping[21] = 8, 9, 20, 21
    mapping[7] = 7
    window = Group(kind=Kind.SWA, k_head=server.group.k_head.clone(), k_tail=server.group.k_tail.clone(), swa_index_lut=mapping)
    window.k_tail.view(torch.int64)[7, 1] = 40
    window.k_tail.view(torch.int64)[9, 1] = 41
    server.save(path, buffer_groups=[server.group, window], swa_window=2)
    full, swa = snapshot.verify(snapshot.load(path))
    assert (full.kind, swa.kind, swa.chained) == ("FULL", "SWA", 4)
    assert len(full.rows) == 0
    # Slot 7 lies before the window: its own record is not looked at, but its successor's chain is.
    assert slots_of(swa) == {("TAIL_K_SWA", 8, 1), ("TAIL_K_SWA", 9, 2)}


def test_without_a_request_table_bytes_alone_are_checked(path: Path) -> None:
    server = Server()
    server.cell(8)[0] ^= 1
    server.save(path, req_to_token=None, req_pool_indices=None, seq_lens=None)
    [check] = snapshot.verify(snapshot.load(path))
    assert (check.chained, check.bytes_only, slots_of(check)) == (0, 10, {("TAIL_K_FULL", 8, 4)})


def test_requests_in_part_and_foreign_files_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="belong together"):
        Server().save(path, seq_lens=None)
    assert not path.exists()
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"not a snapshot at all")
    with pytest.raises(ImportTextError, match=r"other\.safetensors cannot be read"):
        snapshot.load(other)
    save_file({"x": torch.zeros(1)}, other, metadata={"format": "kvcanary.snapshot/9"})
    with pytest.raises(ImportTextError, match=r"got 'kvcanary\.snapshot/9'"):
        snapshot.load(other)


def test_saving_copies_and_leaves_no_temporary_file(path: Path) -> None:
    server = Server()
    before = server.group.k_tail.clone()
    server.save(path)
    assert torch.equal(server.group.k_tail, before)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert torch.equal(snapshot.load(path).groups[0].buffers["k_tail"], before)


def test_inspect_reads_snapshots_and_their_ring(path: Path) -> None:
    server = Server()
    server.rows[1][3] = 21
    ring = torch.zeros((4, 8), dtype=torch.int64)
    ring[0] = torch.tensor([int(LaunchTag.TAIL_K_FULL), 44, 3, 9, -1, 5, 5, 4])
    server.save(path, violation_ring=ring, violation_write_index=torch.tensor([9]), labels={"rank": "TP3"})
    result = CliRunner().invoke(app, ["inspect", str(path), "--json", "-"])
    assert result.exit_code == 1, result.output
    data = json.loads(result.stdout)
    assert data["causes"][0]["cause"] == "wrong_mapping"
    assert {(row["source"], row["rank"], row["slot_idx"]) for row in data["violations"]} >= {("FULL", "TP3", 21), ("ring", "TP3", 44)}
    # 9 entries along the chains, and the bytes of 3 cached slots and of slot 8, which no table cell names any more.
    assert data["coverage"]["protected_tokens"] == 13
    clean = path.with_name("clean.safetensors")
    Server().save(clean)
    assert CliRunner().invoke(app, ["inspect", str(clean)]).exit_code == 0
    mixed = CliRunner().invoke(app, ["inspect", str(clean), "server.log"])
    assert mixed.exit_code == 2
    assert "cannot be mixed" in mixed.stderr
