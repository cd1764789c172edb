"""The hash and the layout, pinned by literal values of the published formula."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary import layout
from kvcanary.layout import FailReason, LaunchTag

WORDS = st.integers(0, layout.MASK64)


@pytest.mark.parametrize(
    ("value", "mixed"),
    [
        (0x0, 0x0),
        (0x1, 0x5692161D100B05E5),
        (0x2, 0xDBD238973A2B148A),
        (0x2A, 0xA759EA27D4727622),
        (0x7FFFFFFFFFFFFFFF, 0x5A682AFE7965DEBD),
        (0x8000000000000000, 0x25C26EA579CEA98A),
        (0xFFFFFFFFFFFFFFFF, 0xB4D055FCF2CBBD7B),
        (0xC0FFEE1234567890, 0xDE7FAE23A9A1B716),
    ],
)
def test_splitmix_vectors(value: int, mixed: int) -> None:
    assert layout.splitmix64(value) == mixed


@pytest.mark.parametrize(
    ("prev", "token", "position", "mixed"),
    [
        (0, 0, 0, 0),
        (1, 2, 3, 0xA55BDF37C08724B5),
        (3, 2, 1, 0xC72828D3C9400493),
        (layout.CHAIN_START, 101, 0, 0x542FE5061275A6AB),
        (layout.CHAIN_START, -1, 0, 0xE5A9A05404A720CF),
    ],
)
def test_mix3_vectors(prev: int, token: int, position: int, mixed: int) -> None:
    assert layout.mix3(prev, token, position) == mixed


def test_chain_starts_at_the_mixed_anchor_and_can_be_continued() -> None:
    tokens, positions = [101, 2054, 2003, 1996, 102], [0, 1, 2, 3, 4]
    stored = layout.chain_hashes(tokens, positions)
    assert stored[0] == 0xDE7FAE23A9A1B716
    assert stored[4] == 0xB3C0A455E8817808
    seed = layout.mix3(stored[4], 102, 4)
    assert layout.chain_hashes([7592, 2088], [5, 6], seed) == [0x53A174869CEFF5CF, 0x4F0357C14C6F9D05]


@pytest.mark.parametrize(
    ("data", "source_hash", "real_kv_hash"),
    [
        (bytes(range(16)), 0x447F1B95028CE131, 0xD6D75024DFD6C30C),
        (bytes(range(64)), 0x6B9DB01E5CC42DC2, 0x40551C6BCC25300B),
        (b"\xff" * 16, 0xD6BDF7544574C9CB, 0xCA5420B0710A0DAC),
        (bytes(64), 0, 0),
    ],
)
def test_real_kv_vectors(data: bytes, source_hash: int, real_kv_hash: int) -> None:
    assert layout.fold_bytes(data) == source_hash
    assert layout.combine_sources([source_hash]) == real_kv_hash


def test_source_order_counts() -> None:
    first, second = layout.fold_bytes(bytes(range(16))), layout.fold_bytes(bytes(range(16, 32)))
    assert layout.combine_sources([first, second]) == 0xB6209A488C3F52B0
    assert layout.combine_sources([second, first]) == 0xFFFEBA82FF979870


@given(WORDS)
def test_signed_and_unsigned_have_the_same_bits(value: int) -> None:
    signed = layout.to_signed(value)
    assert struct.pack("<q", signed) == struct.pack("<Q", value)
    assert layout.to_unsigned(signed) == value


@given(WORDS, st.integers(0, 63))
def test_one_flipped_input_bit_always_changes_the_hash(value: int, bit: int) -> None:
    assert layout.splitmix64(value) != layout.splitmix64(value ^ (1 << bit))


def test_reason_labels_come_in_the_order_of_the_engine() -> None:
    assert layout.reason_labels(0) == []
    assert layout.reason_labels(63) == [
        "verify_chain_hash", "verify_position", "verify_real_kv_hash", "write_token", "write_position", "verify_token",
    ]  # fmt: skip
    assert layout.reason_labels(FailReason.VERIFY_TOKEN | FailReason.VERIFY_CHAIN_HASH) == ["verify_chain_hash", "verify_token"]


def test_tags_have_the_numbers_of_the_engine() -> None:
    assert [tag.name for tag in sorted(LaunchTag)][4:7] == ["SWEEP_K_FULL", "SWEEP_V_FULL", "HEAD_K_SWA"]
    assert layout.NUM_TAGS == 12
