"""Sweep files: which points they have, and what is said about those that are wrong."""

from __future__ import annotations

import pytest

from kvcanary.errors import ConfigError
from kvcanary.lab.campaign import CONFIGS
from kvcanary.lab.campaign_job import NAMED_FAULTS, CampaignSpec
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.lab.sweep import POINT_LIMIT, read_sweep

BENCH = """
name: hash-cost
kind: bench
base: {pool_slot_count: 2048, req_to_token_pool_size: 8, max_seq_len_per_req: 256, cuda_graph_max_bs: 8, max_prefill_tokens: 512, seed: 7}
"""


def test_a_grid_is_every_combination_and_a_list_adds_to_it() -> None:
    sweep = read_sweep(BENCH + "grid: {real_data: [none, partial], backend: [numba, torch]}\npoints: [{page_size: 4}, {seed: 8}]\n")
    assert [point.label for point in sweep.points] == [
        "real_data=none backend=numba", "real_data=none backend=torch", "real_data=partial backend=numba", "real_data=partial backend=torch",
        "page_size=4", "seed=8",
    ]  # fmt: skip
    specs = [point.spec for point in sweep.points if isinstance(point.spec, BenchmarkSpec)]
    assert [(spec.backend, spec.seed, spec.settings["real_data"], spec.settings["page_size"]) for spec in specs] == [
        ("numba", 7, "none", 1), ("torch", 7, "none", 1), ("numba", 7, "partial", 1), ("torch", 7, "partial", 1), ("auto", 7, "none", 4),
        ("auto", 8, "none", 1),
    ]  # fmt: skip
    assert all(spec.settings["pool_slot_count"] == 2048 for spec in specs)
    assert (sweep.name, sweep.label) == ("hash-cost", "sweep:hash-cost")


def test_a_base_alone_is_one_point_and_the_same_work_is_one_point() -> None:
    assert [point.label for point in read_sweep(BENCH).points] == ["base"]
    assert len(read_sweep(BENCH + "points: [{page_size: 2}, {page_size: 2}, {page_size: '2'}]\n").points) == 1


def test_estimates_grow_with_the_work() -> None:
    first, second = read_sweep(BENCH + "grid: {pool_slot_count: [2048, 65536], preset: [standard]}\n").points
    assert 0 < first.estimate_s < second.estimate_s
    assert 0 < first.peak_bytes < second.peak_bytes
    few, many = read_sweep("{name: c, kind: campaign, grid: {seeds: [1, 5]}}").points
    assert 0 < few.estimate_s < many.estimate_s


def test_a_point_keeps_its_key_in_another_file_and_another_seed_has_another() -> None:
    alone = read_sweep(BENCH).points[0].key
    among = [point.key for point in read_sweep(BENCH.replace("hash-cost", "other") + "grid: {seed: [6, 7, 8]}\n").points]
    assert among.index(alone) == 1
    assert len(set(among)) == 3


def test_a_real_configuration_is_a_workload() -> None:
    sweep = read_sweep("{name: x, kind: bench, grid: {preset_settings: [laptop, no-such]}, base: {real_data: none}}")
    good, bad = sweep.points
    assert isinstance(good.spec, BenchmarkSpec)
    assert good.spec.settings["real_data"] == "none"
    assert bad.spec is None
    assert "laptop" in bad.problem


def test_a_campaign_is_swept_over_its_own_options() -> None:
    sweep = read_sweep(
        "{name: c, kind: campaign, base: {faults: [payload_bytes.v_row]}, grid: {configs: [[partial], [strict]], seeds: [1, 2]}}"
    )
    specs = [point.spec for point in sweep.points if isinstance(point.spec, CampaignSpec)]
    assert [(spec.configs, spec.seeds) for spec in specs] == [(["partial"], 1), (["partial"], 2), (["strict"], 1), (["strict"], 2)]


def test_faults_and_configurations_have_the_names_of_the_command_line() -> None:
    text = "{name: c, kind: campaign, base: {configs: all}, grid: {faults: [quick, all, [slot_leak.never_freed]]}}"
    found = [(len(point.spec.faults), len(point.spec.configs)) for point in read_sweep(text).points if isinstance(point.spec, CampaignSpec)]
    assert found == [(len(NAMED_FAULTS["quick"]), len(CONFIGS)), (len(NAMED_FAULTS["all"]), len(CONFIGS)), (1, len(CONFIGS))]
    assert len(NAMED_FAULTS["all"]) > len(NAMED_FAULTS["quick"]) > 1


def test_a_campaign_runs_on_the_host() -> None:
    host, other = read_sweep("{name: c, kind: campaign, grid: {device: [cpu, 'cuda:0']}}", elsewhere=True).points
    assert (host.problem, host.devices, other.spec) == ("", 0, None)
    assert "device of a campaign must be cpu" in other.problem


def test_a_point_that_cannot_run_keeps_its_reason_and_the_others_run() -> None:
    sweep = read_sweep(BENCH + "grid: {page_size: [1, 0], mode: [log, nonsense], device: [cpu, gpu9]}\n")
    assert [bool(point.problem) for point in sweep.points] == [False] + [True] * 7
    assert "device must be cpu or cuda:N" in sweep.points[1].problem
    assert "nonsense" in sweep.points[2].problem
    assert all((point.spec is None) == bool(point.problem) for point in sweep.points)


def test_a_device_need_not_be_where_the_sweep_is_called() -> None:
    text = BENCH + "grid: {device: [cpu, 'cuda:7', gpu9], pool_slot_count: [2048, 2000000000]}\n"
    assert [bool(point.problem) for point in read_sweep(text).points] == [False, True, True, True, True, True]
    points = read_sweep(text, elsewhere=True).points
    assert [(point.devices, bool(point.problem)) for point in points] == [
        (0, False),
        (0, False),
        (1, False),
        (1, False),
        (0, True),
        (0, True),
    ]
    assert points[3].peak_bytes > 10**11


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "not YAML"),
        ("- 1", "must be a mapping with name, kind, base, grid, points, got list"),
        ("{name: x, kind: bench, axes: {}}", "has the keys name, kind, base, grid, points, got 'axes'"),
        ("{name: '../x', kind: bench}", "name must be 1 to 50 letters"),
        ("{kind: bench}", "name must be 1 to 50 letters, digits, dots, dashes or underscores, got 'None'"),
        ("{name: x, kind: run}", "kind must be one of bench/campaign, got 'run'"),
        ("{name: x, kind: bench, grid: {page_size: 4}}", "grid.page_size must be a list of values, got '4'"),
        ("{name: x, kind: bench, grid: {page_size: []}}", "grid.page_size must be a list of values"),
        ("{name: x, kind: bench, grid: [1]}", "grid must be a mapping"),
        ("{name: x, kind: bench, points: {page_size: 4}}", "points must be a list of mappings"),
        ("{name: x, kind: bench, base: {page_sizes: 4}}", "'page_sizes' is no option of a bench"),
        ("{name: x, kind: campaign, base: {page_size: 4}}", "'page_size' is no option of a campaign; options are faults, configs, seeds"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
        ("x" * (2 << 20), "may have 1048576 characters"),
        (
            "name: x\nkind: bench\npoints:\n- &a {seed: [1, 1, 1]}\n- &b {seed: [*a, *a, *a]}\n- {seed: [*b, *b, *b]}\n",
            "in line 4 is used again by an alias",
        ),
        ("{name: x, kind: bench, base: &b {seed: *b}}", "is used again by an alias"),
        ("{name: x, kind: bench, base: {seed: 0x" + "9" * 5000 + "}}", "may hold text, numbers"),
        ("{name: x, kind: bench, base: {step_time_s: .inf}}", "may hold text, numbers"),
        ("{name: x, kind: bench, base: {model: 2031-01-02}}", "quote a date"),
        (
            "{name: x, kind: bench, grid: {"
            + ", ".join(
                f"{name}: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]" for name in ("seed", "page_size", "ring_capacity", "num_layers", "head_dim")
            )
            + "}}",
            "may have 10000 points, this one has 100000",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_key(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_sweep(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("kind: bench, base: {seed: '1'}", "seed: should be a valid integer, got '1'"),
        ("kind: bench, base: {preset: [quick]}", "preset: should be a valid string, got ['quick']"),
        ("kind: bench, base: {faults: 1}", "faults: should be a valid boolean, got 1"),
        ("kind: campaign, base: {faults: most}", "faults: should be a valid array, got 'most'"),
        ("kind: campaign, base: {faults: [1]}", "faults.0: should be a valid string, got 1"),
    ],
)
def test_a_point_with_a_value_of_another_type_says_which(options: str, sentence: str) -> None:
    [point] = read_sweep(f"{{name: x, {options}}}").points
    assert point.spec is None
    assert point.problem == sentence


def test_a_sweep_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcanary.lab.sweep.POINT_LIMIT", 3)
    assert POINT_LIMIT == 10_000
    with pytest.raises(ConfigError, match="may have 3 points, this one has 4"):
        read_sweep("{name: c, kind: campaign, grid: {seeds: [1, 2, 3, 4]}}")
    listed = [f"{{seeds: {number}}}" for number in (1, 2, 3, 4)]
    assert len(read_sweep(f"{{name: c, kind: campaign, points: [{', '.join(listed[:3])}]}}").points) == 3
    with pytest.raises(ConfigError, match="may have 3 points, this one has 4"):
        read_sweep(f"{{name: c, kind: campaign, points: [{', '.join(listed)}]}}")
