"""What a swept pool looks like slot by slot: status, records, and a card for each slot with something to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary import layout
from kvcanary.lab import bounds
from kvcanary.lab.planted import PlantedFault
from kvcanary.lab.records import RunFolder
from kvcanary.lab.scene import Scene
from kvcanary.lab.tables import record_columns, write_slots
from kvcanary.layout import SlotStatus

MAP_BYTES_LIMIT = 200 << 20
# A backend that reports everything must not fill the disk with cards; the map shows every slot all the same.
CARD_LIMIT = 2000

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Swept:
    """A swept scene on the host. table int64 [used]: the slot that each token's table cell points to now, in chain order."""

    scene: Scene
    fields: _Ints
    flags: npt.NDArray[np.uint8]
    slots: _Ints
    table: _Ints
    faults: Sequence[PlantedFault]

    @classmethod
    def of(cls, scene: Scene, faults: Sequence[PlantedFault]) -> _Swept:
        assert scene.coverage.slot_flags is not None, "a scene always has slot flags"
        return cls(
            scene=scene,
            fields=scene.fields.cpu().numpy(),
            flags=scene.coverage.slot_flags.cpu().numpy(),
            slots=scene.slots.cpu().numpy(),
            table=scene.req_to_token[1:].reshape(-1).cpu().numpy().astype(np.int64),
            faults=faults,
        )

    def planted(self) -> dict[int, PlantedFault]:
        """The fault at each slot that one concerns."""
        return {slot: fault for fault in self.faults for slot in (fault.slot, *fault.also)}

    def chain_index(self) -> _Ints:
        """Where each slot's own token stands in chain order, int64 [num_slots]; -1 without a token."""
        index = np.full(self.scene.shape.num_slots, -1, dtype=np.int64)
        index[self.slots] = np.arange(len(self.slots))
        return index

    def status(self) -> npt.NDArray[np.uint8]:
        """SlotStatus of each slot, uint8 [num_slots]."""
        status = np.full(self.scene.shape.num_slots, SlotStatus.FREE, dtype=np.uint8)
        status[: self.scene.shape.first_slot] = SlotStatus.RESERVED
        status[self.slots] = SlotStatus.SKIPPED
        status[self.table] = SlotStatus.CLEAN
        status[list(self.planted())] = SlotStatus.INJECTED
        status[self.flags > 0] = SlotStatus.CORRUPTED
        return status


def coverage(scene: Scene, faults: Sequence[PlantedFault]) -> dict[str, int]:
    """What the sweep looked at and what it could not see, as counts."""
    status = _Swept.of(scene, faults).status()
    return {
        **scene.coverage.to_dict(),
        "slots": scene.shape.num_slots,
        "free": scene.shape.num_slots - scene.shape.used - scene.shape.first_slot,
        "reserved": scene.shape.first_slot,
        "reported": int((status == SlotStatus.CORRUPTED).sum()),
        "faults_out_of_reach": sum(not fault.expected for fault in faults),
        "kv_bytes_hashed_per_slot": bounds.hashed_bytes(scene),
        "launches": int(scene.counters.kernel_runs.sum().item()),
        "ring_kept": len(scene.ring.kept()),
        "ring_dropped": scene.ring.dropped(),
    }


def write_map(folder: RunFolder, scene: Scene, faults: Sequence[PlantedFault]) -> None:
    """Status of every slot, the records where they are not too large, and the cards."""
    swept = _Swept.of(scene, faults)
    chain_index = swept.chain_index()
    columns: dict[str, npt.NDArray[Any]] = {"status": swept.status(), "flags": swept.flags, "chain_index": chain_index}
    if swept.fields.nbytes <= MAP_BYTES_LIMIT:
        columns |= record_columns(swept.fields)
    write_slots(folder.slots_file, columns, length=scene.shape.length)
    planted = swept.planted()
    reported = [slot for slot in np.flatnonzero(swept.flags).tolist() if slot not in planted]
    marked = sorted([*planted, *reported[:CARD_LIMIT]])
    wrong = np.flatnonzero(swept.table != swept.slots)
    pointed_to = dict(zip(swept.table[wrong].tolist(), wrong.tolist(), strict=True))
    folder.write_cards([_card(swept, slot, pointed_to.get(slot, int(chain_index[slot])), planted.get(slot)) for slot in marked])


def _card(swept: _Swept, slot: int, index: int, fault: PlantedFault | None) -> dict[str, Any]:
    """What is stored, what verify expects there now, whose it is and who comes before and after.

    `index` is the token whose table cell leads here, which for a wrong cell is another request's. The expected prev_hash follows from the
    predecessor's record as it is, so an echo shows against its cause.
    """
    scene, length = swept.scene, swept.scene.shape.length
    position = index % length
    predecessor = int(swept.table[index - 1]) if position else layout.CHAIN_HEAD
    expected_hash = layout.CHAIN_START
    if position:
        token, place, prev_hash, _ = (int(value) for value in swept.fields[predecessor])
        expected_hash = layout.mix3(layout.to_unsigned(prev_hash), token, place)
    return {
        "slot": slot,
        "request": index // length + 1,
        "position": position,
        "stored": swept.fields[slot].tolist(),
        "expected": [int(scene.tokens[index]), position, layout.to_signed(expected_hash), _real_hash_now(scene, slot)],
        "predecessor": predecessor,
        "successor": int(swept.table[index + 1]) if position + 1 < length else -1,
        "reasons": layout.reason_labels(int(swept.flags[slot])),
        "fault": None if fault is None else asdict(fault),
    }


def _real_hash_now(scene: Scene, slot: int) -> int:
    """The real-KV hash of the bytes as they are, signed; 0 when nothing is hashed."""
    if scene.kv is None:
        return 0
    read = scene.sources[0].read_bytes
    return layout.to_signed(layout.combine_sources([layout.fold_bytes(bytes(scene.kv[slot, :read].tolist()))]))
