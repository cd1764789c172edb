"""JSON that an operator has: a running server's answer, a model's config, our own settings and runs, arguments in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from kvcanary.config.settings import FIELDS, GROUPS
from kvcanary.errors import ImportTextError
from kvcanary.importers.arguments import table
from kvcanary.importers.fields import FieldSet
from kvcanary.importers.flags import note
from kvcanary.importers.hf_config import is_hf_config, read_hf_config, weight_bytes_from_index
from kvcanary.importers.result import FieldValue, ImportKind, ImportResult, Rank
from kvcanary.importers.secrets import is_secret
from kvcanary.importers.server_log_summary import server_args_view
from kvcanary.importers.sglang_fields import sglang_arguments
from kvcanary.importers.vllm_fields import vllm_arguments
from kvcanary.units import GIB, format_bytes

MAX_DOCUMENT_CHARS = 8 << 20
MAX_DOCUMENTS = 1000
_SERVER_INFO = {"internal_states", "max_req_input_len", "effective_max_running_requests_per_dp"}
_STATE_KEYS = ("last_gen_throughput", "memory_usage", "effective_max_running_requests_per_dp", "avg_spec_accept_length")


def documents(text: str) -> Iterator[tuple[int, int, Any]]:
    """JSON objects that begin a line of a text: start, end and value. Broken ones are passed over, and so is what stands behind many objects."""
    decoder = json.JSONDecoder()
    at = 0
    failures, found = 0, 0
    while at < len(text) and failures < 50 and found < MAX_DOCUMENTS:
        if text[at] != "{":
            at = text.find("\n{", at)
            if at < 0:
                return
            at += 1
        try:
            value, end = decoder.raw_decode(text[: at + MAX_DOCUMENT_CHARS], at)
        except (ValueError, RecursionError):
            failures += 1
            at += 1
            continue
        yield at, end, value
        at, found = end, found + 1


def kind_of(document: Any) -> ImportKind | None:
    """What a JSON object is, None for one of no known kind."""
    if not isinstance(document, dict):
        return None
    schema = document.get("schema")
    if isinstance(schema, str) and schema.startswith("kvcanary."):
        return (
            ImportKind.RUN if schema in ("kvcanary.run", "kvcanary.result", "kvcanary.bench", "kvcanary.campaign") else ImportKind.SETTINGS
        )
    known = sum(key in table("sglang").arguments for key in document)
    if _SERVER_INFO & set(document) or (known >= 3 and "max_total_num_tokens" in document):
        return ImportKind.SERVER_INFO
    if "weight_map" in document or (isinstance(document.get("metadata"), dict) and "total_size" in document["metadata"]):
        return ImportKind.WEIGHT_INDEX
    settings = document["settings"] if isinstance(document.get("settings"), dict) else document
    # Several names are SGLang's as well as ours; a settings file has nothing but ours.
    if (
        settings
        and all(_is_own(key, value) for key, value in settings.items())
        and not all(key in table("sglang").arguments for key in settings)
    ):
        return ImportKind.SETTINGS
    if is_hf_config(document):
        return ImportKind.HF_CONFIG
    if known >= 2 and known >= 0.6 * len(document):
        return ImportKind.SERVER_INFO
    vllm = sum(key in table("vllm").arguments or key == "num_gpu_blocks" for key in document)
    return ImportKind.COMMAND if vllm >= 2 and vllm >= 0.6 * len(document) else None


def _is_own(key: str, value: Any) -> bool:
    return key in FIELDS or (key in GROUPS and isinstance(value, dict) and all(inner in FIELDS for inner in value))


def read_document(document: Mapping[str, Any], kind: ImportKind, name: str, *, tp_size: int = 1, kv_dtype: str = "auto") -> ImportResult:
    """Read an object of a known kind; ImportTextError where its values make no sense."""
    if kind is ImportKind.SERVER_INFO:
        return read_server_info(document, name)
    if kind is ImportKind.COMMAND:
        return _vllm_arguments(document, name)
    if kind is ImportKind.HF_CONFIG:
        return _hf_config(document, name, tp_size, kv_dtype)
    if kind is ImportKind.WEIGHT_INDEX:
        weight = weight_bytes_from_index(document, tp_size=tp_size)
        entry = FieldValue(value=weight.value, source=weight.source, rank=Rank.FILE)
        return ImportResult(kind=kind, name=name, fields={"weight_bytes": entry})
    return _own(document, kind, name)


def read_server_info(document: Mapping[str, Any], name: str) -> ImportResult:
    """/server_info: flattened arguments, the pool, and one state per data-parallel rank.

    The request rows are `effective_max_running_requests_per_dp`; the top-level max_running_requests is what was asked for.
    """
    listed = document.get("internal_states")
    states = [state for state in listed if isinstance(state, dict)] if isinstance(listed, list) else []
    if not states and "memory_usage" in document:
        states = [dict(document)]  # One state pasted alone.
    arguments = {key: value for key, value in document.items() if key not in ("internal_states", *_STATE_KEYS) and not is_secret(key)}
    view = server_args_view(
        {key: value for key, value in arguments.items() if key in table("sglang").arguments or key.startswith("kv_canary")}
    )
    found = FieldSet()
    sglang_arguments(found, view, lambda key: f"server_info, {key}", Rank.SERVER_ARGS)
    observed: dict[str, Any] = {"server_args": view}
    for key in ("max_total_num_tokens", "max_req_input_len", "version", "status"):
        if isinstance(document.get(key), int | str):
            observed[key] = document[key]
    found.put("pool_slot_count", _count(document.get("max_total_num_tokens")), "server_info, max_total_num_tokens", Rank.READY)
    _states(found, observed, states)
    fields, conflicts = found.settle()
    return ImportResult(
        kind=ImportKind.SERVER_INFO, name=name, engine="sglang", observed=observed, fields=fields, conflicts=tuple(conflicts),
        findings=tuple(found.findings),
    )  # fmt: skip


def _vllm_arguments(document: Mapping[str, Any], name: str) -> ImportResult:
    """vLLM's engine arguments in a file, which are typed already."""
    arguments = {key: value for key, value in document.items() if not is_secret(key)}
    found = FieldSet()
    vllm_arguments(found, arguments, lambda key: f"{name}, {key}", Rank.COMMAND)
    fields, conflicts = found.settle()
    return ImportResult(
        kind=ImportKind.COMMAND, name=name, engine="vllm", arguments=arguments, fields=fields, conflicts=tuple(conflicts),
        findings=tuple(found.findings),
    )  # fmt: skip


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _states(found: FieldSet, observed: dict[str, Any], states: list[dict[str, Any]]) -> None:
    rows = [value for state in states if (value := _count(state.get("effective_max_running_requests_per_dp"))) is not None]
    if rows:
        observed["effective_max_running_requests_per_dp"] = rows if len(set(rows)) > 1 else rows[0]
        derived = "smallest over data-parallel ranks" if len(set(rows)) > 1 else ""
        found.put("req_to_token_pool_size", min(rows), "server_info, effective_max_running_requests_per_dp", Rank.READY, derived)
    usages = [state["memory_usage"] for state in states if isinstance(state.get("memory_usage"), dict)]
    if not usages:
        return
    observed["memory_usage"] = usages if len(usages) > 1 else usages[0]
    for name, key in (("weight_bytes", "weight"), ("graph_bytes", "graph")):
        sizes = [usage[key] for usage in usages if isinstance(usage.get(key), int | float) and usage[key] > 0]
        if sizes:
            size = max(sizes) * GIB
            size_bytes = size if isinstance(size, float) and not math.isfinite(size) else round(size)
            found.put(name, size_bytes, f"server_info, memory_usage.{key}", Rank.LOG, '"GB" is GiB; largest over ranks')
    capacities = [value for usage in usages if (value := _count(usage.get("token_capacity"))) is not None]
    if capacities:
        found.put("pool_slot_count", min(capacities), "server_info, memory_usage.token_capacity", Rank.LOG)


def _hf_config(document: Mapping[str, Any], name: str, tp_size: int, kv_dtype: str) -> ImportResult:
    reading = read_hf_config(document, kv_dtype=kv_dtype, tp_size=tp_size)
    found = FieldSet()
    for field, entry in reading.fields.items():
        found.put(field, entry.value, f"config.json, {entry.source}", Rank.FILE)
    findings = [
        note("geometry-unknown", f"{entry.field}: {entry.text}", f"What would settle it: {entry.settle}.") for entry in reading.unknowns
    ]
    return ImportResult(
        kind=ImportKind.HF_CONFIG, name=name, fields=found.settle()[0], findings=(*findings, *found.findings),
        observed={"hf_config": dict(document)},
    )  # fmt: skip


def _own(document: Mapping[str, Any], kind: ImportKind, name: str) -> ImportResult:
    settings = document.get("settings")
    if settings is None and isinstance(spec := document.get("spec"), dict):
        settings = spec.get("settings")
    if settings is None and isinstance(fields := document.get("fields"), dict):
        settings = {key: entry.get("value") for key, entry in fields.items() if isinstance(entry, dict)}
    if settings is None and "schema" not in document:
        settings = document
    if not isinstance(settings, dict):
        raise ImportTextError(f"{name}: a {document.get('schema')} file without settings")
    flat = _flat(settings)
    found = FieldSet()
    for field, value in flat.items():
        if field in FIELDS:
            found.put(field, value, f"{name}, {field}", Rank.FILE)
            if value is None and FIELDS[field].optional:
                found.add(field, FieldValue(value=None, source=f"{name}, {field}", rank=Rank.FILE))
    if found.findings and not found.candidates:
        raise ImportTextError(found.findings[0].message)
    unknown = [field for field in flat if field not in FIELDS]
    findings = [note("unknown-field", f"{field}: no such settings field", "It may come from another version.") for field in unknown[:20]]
    return ImportResult(kind=kind, name=name, fields=found.settle()[0], findings=(*findings, *found.findings))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by flat names, from groups or flat."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and key in GROUPS:
            flat.update(value)
        else:
            flat[key] = value
    return flat


def problem(text: str) -> str:
    """Why a text that begins like JSON is none, or is none of a known kind; empty if it is not meant as JSON."""
    if len(text) > MAX_DOCUMENT_CHARS:
        return f"has more than {format_bytes(MAX_DOCUMENT_CHARS)}, which no server_info, config.json or settings file has"
    try:
        value = json.loads(text)
    except RecursionError:
        return "is nested too deeply"
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return "holds several values, none of them of a known kind"
        if error.pos >= len(text.rstrip()) - 1 or "Unterminated" in error.msg:
            return f"breaks off at line {error.lineno}; paste it whole"
        return f"is not valid at line {error.lineno}, column {error.colno}: {error.msg}"
    except ValueError:
        return "holds a number that is too long"
    keys = ", ".join(list(value)[:5]) if isinstance(value, dict) else type(value).__name__
    return f"is none of server_info, config.json or our own settings ({keys[:80]})"
