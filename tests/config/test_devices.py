from __future__ import annotations

import json
from typing import Any

import pytest

from kvcanary.config.devices import catalogue, find_device, match_device, parse_devices
from kvcanary.errors import ConfigError
from kvcanary.units import MIB

OWN = {
    "name": "Acme X1",
    "aliases": ["X1"],
    "memory_mib": 49000,
    "memory_source": "its driver",
    "sheet_gb": 51.5,
    "bandwidth_gb_s": 1234.5,
    "bandwidth_source": "its sheet",
}


def text(*entries: Any) -> str:
    return json.dumps({"schema": 1, "devices": entries})


def test_catalogue_is_complete_and_sourced() -> None:
    devices = catalogue()
    assert len(devices) >= 20
    assert len({device.name for device in devices}) == len(devices)
    for device in devices:
        assert device.memory_source
        assert device.bandwidth_source
        # What the engine sees is at most the data sheet read as GiB, and never below nine tenths of it read as GB.
        if device.memory_bytes is not None:
            assert 0.9 * device.sheet_bytes <= device.memory_bytes <= 1.08 * device.sheet_bytes
        if device.bandwidth_bytes_s is not None:
            assert 1e11 < device.bandwidth_bytes_s < 1e13


def test_a_figure_names_its_address_or_says_that_it_was_not_confirmed() -> None:
    sources = [source for device in catalogue() for source in (device.memory_source, device.bandwidth_source)]
    assert [source for source in sources if "https://" not in source and not source.startswith("not ")] == []
    confirmed = sum(not source.startswith("not ") for source in sources)
    assert confirmed >= 0.8 * len(sources)


def test_labels_are_unambiguous() -> None:
    labels = [label for device in catalogue() for label in {name.lower() for name in (device.name, *device.aliases)}]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize(
    ("name", "mib", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 PCIe", 81559, "NVIDIA H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", 40960, "NVIDIA A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "NVIDIA A100 80GB PCIe"),
        ("NVIDIA A10G", 22731, "NVIDIA A10G"),
        ("Tesla T4", 15095, "NVIDIA T4"),
        ("AMD Instinct MI300X", 196592, "AMD Instinct MI300X"),
        ("NVIDIA H200", None, "NVIDIA H200"),
    ],
)
def test_driver_names_are_matched(name: str, mib: int | None, expected: str) -> None:
    match = match_device(name, None if mib is None else mib * MIB)
    assert match.device is not None
    assert match.device.name == expected


@pytest.mark.parametrize(
    ("name", "mib", "reason"),
    [
        ("NVIDIA H200 MIG 1g.18gb", 16384, "partition"),
        ("NVIDIA A100-SXM4-80GB", 40960, "do not"),
        ("Quantum Accelerator", 1000, "not in the device list"),
        ("NVIDIA B2000", 183359, "not in the device list"),
    ],
)
def test_no_match_says_why(name: str, mib: int, reason: str) -> None:
    match = match_device(name, mib * MIB)
    assert match.device is None
    assert reason in match.text


def test_own_devices_win() -> None:
    own = parse_devices(text({**OWN, "name": "NVIDIA H200", "aliases": []}))
    assert own[0].memory_bytes == 49000 * MIB
    assert own[0].bandwidth_bytes_s == 1234.5e9
    assert find_device("nvidia  h200", own) == own[0]
    assert find_device("h200") != own[0]
    assert match_device("Acme X1 rev 2", 49000 * MIB, parse_devices(text(OWN))).device is not None
    assert find_device("none such") is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"schema": ' + "9" * 5000 + "}", "not JSON"),
        ("[]", 'must be an object with "schema": 1'),
        (json.dumps({"schema": 2, "devices": []}), '"schema": 1'),
        (text(5), "entry 0 must be an object"),
        (text({**OWN, "speed": 1}), "unknown key 'speed'"),
        (text({key: value for key, value in OWN.items() if key != "memory_source"}), "memory_source is missing"),
        (text({**OWN, "sheet_gb": None}), "sheet_gb must be a number above 0"),
        (text({**OWN, "bandwidth_gb_s": -1}), "bandwidth_gb_s must be a number above 0, got '-1'"),
        (text({**OWN, "memory_mib": True}), "memory_mib must be a number"),
        (text({**OWN, "name": " "}), "name must be text"),
        (text({**OWN, "aliases": "X"}), "aliases must be a list"),
        (text(OWN, {**OWN, "name": "acme x1"}), "'acme x1' is listed twice"),
        (text(*[OWN] * 1001), "at most 1000 devices, got 1001"),
    ],
)
def test_bad_lists_name_the_entry(document: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_devices(document)
