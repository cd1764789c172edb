"""A sweep on paper: the points of a grid or a list, each with the spec that a job runs, and what they will about take."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import yaml

from kvcanary.config.presets import find_preset
from kvcanary.config.settings import FIELDS, Settings
from kvcanary.errors import ConfigError, KvCanaryError
from kvcanary.lab.campaign_job import NAMED_CONFIGS, NAMED_FAULTS, CampaignSpec, plan_of
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.lab.workloads import plan_benchmark
from kvcanary.typed import typed

POINT_LIMIT = 10_000
TEXT_LIMIT = 1 << 20
KINDS = ("bench", "campaign")
_KEYS = ("name", "kind", "base", "grid", "points")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
# What no machine has, so that none is ruled out here.
_ANY_MEMORY_BYTES = 1 << 60
# One run of a campaign on two cores that others use as well, and the start of its worker; they serve the estimate only.
# One run of a campaign on one thread, at the slow side of what `campaign_pool` counts with; more processes make it shorter.
_CAMPAIGN_RUN_S, _CAMPAIGN_START_S = 0.06, 5.0
_BENCH_OPTIONS = tuple(field.name for field in fields(BenchmarkSpec) if field.name != "settings")
_NAMED: Mapping[str, Mapping[str, list[str]]] = {"faults": NAMED_FAULTS, "configs": NAMED_CONFIGS}
_CAMPAIGN_OPTIONS = tuple(field.name for field in fields(CampaignSpec) if field.name != "continues")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One point. spec is what a job runs, None where `problem` says why nothing can; varied: what tells it from the others.

    key is the same for the same work in whatever sweep, so a changed file runs only what is new in it.
    """

    key: str
    varied: Mapping[str, Any]
    spec: BenchmarkSpec | CampaignSpec | None
    problem: str = ""
    estimate_s: float = 0.0
    peak_bytes: int = 0
    devices: int = 0

    @property
    def label(self) -> str:
        """'real_data=partial backend=numba'."""
        return (
            " ".join(f"{name}={json.dumps(value) if isinstance(value, list) else value}" for name, value in self.varied.items()) or "base"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All points of one file, each once."""

    name: str
    kind: str
    points: tuple[SweepPoint, ...]

    @property
    def label(self) -> str:
        """The label of its runs in the store."""
        return sweep_label(self.name)


def sweep_label(name: str) -> str:
    """The label of the runs of a sweep."""
    return f"sweep:{name}"


def read_sweep(text: str, *, elsewhere: bool = False) -> Sweep:
    """Read a sweep file (YAML, of which JSON is a part). ConfigError names the key that is wrong; a point that cannot run keeps its reason.

    name; kind: bench or campaign; base: what all points share; grid: lists, of which every combination is a point; points: a list of
    single points. Options are those of the kind, settings by their field name, and `preset_settings`, a real configuration by name.
    elsewhere: points run on other machines, which say themselves what device and memory they have; here they need not be.
    """
    document = _document(text)
    name, kind = document.get("name"), document.get("kind")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"name must be 1 to 50 letters, digits, dots, dashes or underscores, got {str(name)[:60]!r}")
    if kind not in KINDS:
        raise ConfigError(f"kind must be one of {'/'.join(KINDS)}, got {str(kind)[:60]!r}")
    base = _mapping(document, "base")
    grid = _mapping(document, "grid")
    for axis, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"grid.{axis} must be a list of values, got {str(values)[:60]!r}")
    listed = document.get("points", [])
    if not isinstance(listed, list) or not all(isinstance(point, dict) for point in listed):
        raise ConfigError(f"points must be a list of mappings, got {str(listed)[:60]!r}")
    options = _BENCH_OPTIONS if kind == "bench" else _CAMPAIGN_OPTIONS
    for given in (base, grid, *listed):
        _check_names(given, kind, options)
    # Counted before any is worked out: a short text can name more combinations than anybody can wait for.
    count = (math.prod(map(len, grid.values())) if grid or not listed else 0) + len(listed)
    if count > POINT_LIMIT:
        raise ConfigError(f"a sweep may have {POINT_LIMIT} points, this one has {count:.6g}; split it into several files")
    found: dict[str, SweepPoint] = {}
    for varied in _varied(grid, listed):
        point = _point(kind, base, varied, elsewhere)
        found.setdefault(point.key, point)
    return Sweep(name=name, kind=kind, points=tuple(found.values()))


def _document(text: str) -> dict[str, Any]:
    if len(text) > TEXT_LIMIT:
        raise ConfigError(f"a sweep file may have {TEXT_LIMIT} characters, got {len(text)}")
    try:
        document = _read_yaml(text)
        json.dumps(document, allow_nan=False)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())[:200]}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"a sweep file may hold text, numbers, true, false, lists and mappings; quote a date: {str(error)[:200]}"
        ) from None
    if not isinstance(document, dict):
        raise ConfigError(f"a sweep file must be a mapping with {', '.join(_KEYS)}, got {type(document).__name__}")
    unknown = [key for key in document if key not in _KEYS]
    if unknown:
        raise ConfigError(f"a sweep file has the keys {', '.join(_KEYS)}, got {str(unknown[0])[:60]!r}")
    return document


def _read_yaml(text: str) -> Any:
    """Plain values, each written where it stands: with aliases a few lines could stand for more than memory holds."""
    loader = yaml.SafeLoader(text)
    root = loader.get_single_node()
    seen: set[int] = set()
    waiting = [] if root is None else [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            raise yaml.YAMLError(f"what stands in line {node.start_mark.line + 1} is used again by an alias; write it out instead")
        seen.add(id(node))
        for child in () if isinstance(node, yaml.ScalarNode) else node.value:
            waiting += child if isinstance(child, tuple) else [child]
    return None if root is None else loader.construct_document(root)


def _mapping(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{key} must be a mapping, got {str(value)[:60]!r}")
    return value


def _check_names(given: Mapping[Any, Any], kind: str, options: Sequence[str]) -> None:
    settings = ("preset_settings", *FIELDS) if kind == "bench" else ()
    for name in given:
        if name not in options and name not in settings:
            raise ConfigError(
                f"{str(name)[:60]!r} is no option of a {kind}; options are {', '.join(options)}"
                + (", preset_settings and every settings field" if settings else "")
            )


def _varied(grid: Mapping[str, list[Any]], listed: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Combinations of the grid, the last axis fastest, then the listed points; one point where there is neither."""
    if grid or not listed:
        for values in itertools.product(*grid.values()):
            yield dict(zip(grid, values, strict=True))
    yield from listed


def _point(kind: str, base: Mapping[str, Any], varied: Mapping[str, Any], elsewhere: bool) -> SweepPoint:
    given = {**base, **varied}
    identity = hashlib.sha256(json.dumps([kind, given], sort_keys=True, default=str).encode()).hexdigest()[:12]
    try:
        return _bench(given, varied, elsewhere) if kind == "bench" else _campaign(given, varied)
    except KvCanaryError as error:
        return SweepPoint(key=identity, varied=varied, spec=None, problem=str(error))


def _bench(given: Mapping[str, Any], varied: Mapping[str, Any], elsewhere: bool) -> SweepPoint:
    preset = given.get("preset_settings")
    settings = dict(find_preset(str(preset)).settings) if preset is not None else {}
    settings |= {name: value for name, value in given.items() if name in FIELDS and name not in _BENCH_OPTIONS}
    options = {name: value for name, value in given.items() if name in _BENCH_OPTIONS}
    spec = typed(BenchmarkSpec, {"settings": Settings.from_flat(settings).to_flat(), **options})
    plan = plan_benchmark(spec, _ANY_MEMORY_BYTES if elsewhere else None)
    return SweepPoint(
        key=_key("bench", spec), varied=varied, spec=spec, estimate_s=plan.estimate_s, peak_bytes=plan.peak_bytes,
        devices=int(spec.device != "cpu"),
    )  # fmt: skip


def _campaign(given: Mapping[str, Any], varied: Mapping[str, Any]) -> SweepPoint:
    lists = {name: named[given[name]] for name, named in _NAMED.items() if isinstance(given.get(name), str) and given[name] in named}
    spec = typed(CampaignSpec, {**given, **lists})
    if spec.device != "cpu":
        raise ConfigError(f"device of a campaign must be cpu, because it serves from the host's memory, got {spec.device[:40]!r}")
    runs = len(plan_of(spec).run_keys())
    return SweepPoint(key=_key("campaign", spec), varied=varied, spec=spec, estimate_s=_CAMPAIGN_START_S + runs * _CAMPAIGN_RUN_S)


def _key(kind: str, spec: BenchmarkSpec | CampaignSpec) -> str:
    return hashlib.sha256(json.dumps([kind, asdict(spec)], sort_keys=True).encode()).hexdigest()[:12]


def spec_from(kind: str, values: Mapping[str, Any]) -> BenchmarkSpec | CampaignSpec:
    """Inverse of asdict, for a spec that travelled to another machine."""
    return BenchmarkSpec(**values) if kind == "bench" else CampaignSpec(**values)
