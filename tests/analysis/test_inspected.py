"""What a page asks of a log: pools and their sizes, page size, status of slots, and neighbours in the chain."""

from __future__ import annotations

import numpy as np

from kvcanary.analysis.inspected import MAP_LIMIT, Inspected
from kvcanary.analysis.log_stream import read_text
from kvcanary.layout import SlotStatus
from tests.analysis.pools import Pool
from tests.analysis.rendering import Row, install, prefix

ARGS = "server_args=ServerArgs(model_path='m', page_size=16, tp_size=1)"


def inspected(text: str) -> Inspected:
    return Inspected(read_text(text))


def messages(*rows: Row) -> str:
    return "".join(f"{prefix()}{row.message()}\n" for row in rows)


def test_pool_size_comes_from_the_install_line_and_is_said_to() -> None:
    [pool] = inspected(f"{install(capacity=3000)}\n" + messages(Row(slot=7))).pools
    assert (pool.name, pool.num_slots, pool.origin) == ("FULL", 1001, "pool size from the log")
    paged = inspected(f"{prefix()}{ARGS}\n{install(capacity=3000)}\n" + messages(Row(slot=7)))
    assert paged.page_size == 16
    assert paged.pools[0].num_slots == 1016


def test_without_it_the_largest_slot_seen_bounds_the_map() -> None:
    found = inspected(messages(Row(slot=7), Row(slot=90, tag="TAIL_K_SWA"), Row(slot=91, tag="TAIL_K_SWA")))
    assert [(pool.name, pool.num_slots) for pool in found.pools] == [("SWA", 92), ("FULL", 8)]
    assert "largest slot seen" in found.pools[0].origin
    assert found.page_size is None


def test_a_map_that_is_cut_says_so() -> None:
    [pool] = inspected(messages(Row(slot=2**40))).pools
    assert pool.num_slots == MAP_LIMIT
    assert pool.origin.endswith("largest slot seen; no map is larger than 33\u202f554\u202f432 slots")
    [stated] = inspected(f"{install(capacity=3 * 2**40)}\n" + messages(Row(slot=7))).pools
    assert stated.origin.startswith("pool size from the log; no map is larger")


def test_status_of_a_pool_under_a_filter_and_of_one_rank() -> None:
    text = messages(Row(slot=3)) + f"{prefix('TP1')}{Row(slot=5).message()}\n" + messages(Row(slot=2**40))
    found = inspected(f"{install(capacity=30)}\n" + text)
    pool = found.pools[0]
    status, outside = found.status(pool, found.cross.mask({}))
    assert np.flatnonzero(status == SlotStatus.CORRUPTED).tolist() == [3, 5]
    assert outside == 1
    one_rank, _ = found.status(pool, found.cross.mask({}), "TP1")
    assert np.flatnonzero(one_rank == SlotStatus.CORRUPTED).tolist() == [5]
    filtered, _ = found.status(pool, found.cross.mask({"rank": ("TP0",)}))
    assert np.flatnonzero(filtered == SlotStatus.CORRUPTED).tolist() == [3]


def test_the_padding_page_of_a_log_is_no_slot_of_its_pool() -> None:
    found = inspected(f"{prefix()}{ARGS}\n{install(capacity=3000)}\n" + messages(Row(slot=0), Row(slot=40)))
    status, _ = found.status(found.pools[0], found.cross.mask({}))
    assert np.flatnonzero(status == SlotStatus.RESERVED).tolist() == list(range(1, 16)), "slot 0 is reported, which counts more"
    assert np.flatnonzero(status == SlotStatus.CORRUPTED).tolist() == [0, 40]
    assert found.slots_of(found.pools[0]) == 1000


def test_a_snapshot_knows_every_slot_and_a_filter_hides_only_reports() -> None:
    known = np.array([SlotStatus.RESERVED, SlotStatus.CLEAN, SlotStatus.CORRUPTED, SlotStatus.SKIPPED], dtype=np.uint8)
    log = read_text(messages(Row(slot=2)))
    found = Inspected(log, {("FULL", log.files[0]): known})
    pool = found.pools[0]
    assert (pool.num_slots, pool.origin) == (4, "pool size from the snapshot")
    assert found.status(pool, found.cross.mask({}))[0].tolist() == known.tolist()
    said = found.summary(pool, known, 0).replace("\u202f", " ")
    assert said == "1 of 3 slots corrupted, first at 2; 67 % of the pool was checked (2 slots). Pool size from the snapshot."
    hidden, _ = found.status(pool, found.cross.mask({"rank": ("TP9",)}))
    assert hidden.tolist() == [SlotStatus.RESERVED, SlotStatus.CLEAN, SlotStatus.CLEAN, SlotStatus.SKIPPED]


def test_what_only_echoes_a_slot_is_told_from_its_cause() -> None:
    pool = Pool()
    pool.stamp([11, 12, 13, 14], [501, 502, 503, 504])
    pool.stamp([31, 32, 33], [701, 702, 703])
    found = inspected(messages(*pool.verify([11, 12, 33, 14])))
    assert found.explained(found.pools[0]) == {33: None, 14: 33}


def test_chain_links_come_from_the_hashes() -> None:
    pool = Pool()
    pool.stamp([11, 12, 13, 14], [501, 502, 503, 504])
    pool.stamp([31, 32, 33], [701, 702, 703])
    # Cell 2 of the first request names slot 33; slot 14 was written behind slot 13, which nothing reports.
    found = inspected(messages(*pool.verify([11, 12, 33, 14])))
    key = (found.diagnosis.incidents[0].replica, "FULL")
    assert found.links.expected == {(*key, 14): 33}
    assert found.links.after == {(*key, 33): (14,)}
    assert found.links.before == {}
