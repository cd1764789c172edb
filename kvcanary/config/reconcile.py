"""A start-up log beside the plan, line by line: what agrees, what differs and why, what differs without a reason.

Names of observed values are those that the log importer gives (`kv_tokens`, `k_size_gb`, `canary`, ...). SGLang prints GiB as "GB" with two
digits, so a size is known to half a hundredth of a GiB and bytes per token only as well as that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcanary.config.capacities import LaunchCapacities, buffer_groups
from kvcanary.config.defaults import ROW_SPARE_TOKENS, kv_budget_bytes, running_requests
from kvcanary.config.geometry import Unknown
from kvcanary.config.kv_parts import RankKv
from kvcanary.config.memory import MemoryPlan, memory_plan
from kvcanary.config.reconciliation import Reconciliation, Row, Status
from kvcanary.config.settings import Settings
from kvcanary.config.solve import changed
from kvcanary.errors import ConfigError
from kvcanary.layout import VERIFY_CAPACITY_FACTOR
from kvcanary.units import GIB, INT64_MAX

ROUNDING_GIB = 0.005
BYTES_PER_TOKEN_TOLERANCE = 0.005
# Allocator granularity, contexts of libraries and small tables that no line counts; seen below a tenth of a GiB in complete logs.
FREE_MEMORY_TOLERANCE_GIB = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes per token from a printed size: best value and the range that the rounding leaves."""

    value: float
    low: float
    high: float


def bytes_per_token(size_gib: float, tokens: int, page_size: int, parts: int = 1) -> Measured:
    """K, V or KV bytes of one token on one rank from a pool line; the printed size includes the spare page. ConfigError without tokens.

    `parts` is the number of printed figures in the size, each rounded by itself.
    """
    rows = tokens + page_size
    if tokens < 1 or page_size < 1:
        raise ConfigError(f"a pool line needs at least 1 token and a page of 1, got {tokens} and {page_size}")
    low, high = max(0.0, size_gib - parts * ROUNDING_GIB), size_gib + parts * ROUNDING_GIB
    return Measured(value=size_gib * GIB / rows, low=low * GIB / rows, high=high * GIB / rows)


def plan_to_compare(settings: Settings) -> MemoryPlan:
    """The plan that a log is laid beside: where layers and heads are known, bytes per token come from them and not from the log itself."""
    plan = memory_plan(settings)
    if plan.geometry.stated_bytes_per_token is None:
        return plan
    independent = memory_plan(changed(settings, kv_bytes_per_token=None))
    return independent if isinstance(independent.rank, RankKv) else plan


def reconcile(plan: MemoryPlan, observed: Mapping[str, Any]) -> Reconciliation:
    """Compare every value the log states with the plan. Values that are null or missing give no row."""
    log = _Log(plan, observed)
    rows = [*log.weights(), *log.pool(), *log.sizing(), *log.sizes(), *log.free_after_pool(), *log.canary(), *log.limits(), *log.rest()]
    return Reconciliation(rows=tuple(rows))


def _number(value: Any) -> float | None:
    """A number that a size or a count can be, None for anything else: a text may have a word or endless digits in its place."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= INT64_MAX else None


class _Log:
    """Reads observed values and makes rows; all sizes inside are GiB."""

    def __init__(self, plan: MemoryPlan, observed: Mapping[str, Any]) -> None:
        self.plan, self.observed = plan, observed
        page_size = self.whole("server_args", "page_size") or 0
        self.page_size = page_size if page_size >= 1 else plan.settings.pool.page_size
        self.slots = plan.settings.pool.pool_slot_count

    def number(self, *names: str) -> float | None:
        """The first of the names that holds a number; a per-rank minimum stands for the rank that decides."""
        return next((value for name in names if (value := _number(self.observed.get(name))) is not None), None)

    def largest(self, name: str) -> float | None:
        """A figure that all ranks have alike, else that of the rank that has most of it."""
        by_rank = self.observed.get(f"{name}_by_rank")
        values = map(_number, by_rank.values()) if isinstance(by_rank, Mapping) else ()
        common = self.number(name)
        return common if common is not None else max((value for value in values if value is not None), default=None)

    def inner(self, section: str, name: str) -> float | None:
        """A number that stands in a part of what was read; None for anything else that the text may have there."""
        values = self.observed.get(section)
        return _number(values.get(name)) if isinstance(values, Mapping) else None

    def whole(self, section: str, name: str) -> int | None:
        """The same for a whole number."""
        value = self.inner(section, name)
        return value if isinstance(value, int) else None

    def gib(self, name: str) -> float | None:
        """Bytes of a plan line in GiB, None where it is missing or unknown."""
        line = next((line for line in self.plan.lines if line.name == name), None)
        return None if line is None or line.bytes is None else line.bytes / GIB

    def row(
        self,
        name: str,
        label: str,
        unit: str,
        observed: float | None,
        planned: float | None,
        tolerance: float = 0.0,
        why: str = "",
        missing: str = "the plan has no figure for it",
    ) -> list[Row]:
        """A row, or none without an observation; `why` explains a difference above the tolerance, `missing` a plan without a figure."""
        if observed is None:
            return []
        if planned is None:
            status, reason = Status.NOT_PLANNED, missing
        elif abs(observed - planned) <= tolerance:
            status, reason = Status.AGREES, ""
        else:
            status, reason = (Status.EXPLAINED, why) if why else (Status.UNEXPLAINED, "")
        return [Row(name=name, label=label, unit=unit, observed=observed, planned=planned, status=status, why=reason)]

    def weights(self) -> list[Row]:
        observed = self.largest("load_weight_mem_gb")
        missing = "weight_bytes is not stated"
        return self.row("load_weight_mem_gb", "Weights", "GiB", observed, self.gib("weights"), 2 * ROUNDING_GIB, missing=missing)

    def pool(self) -> list[Row]:
        allocated, ready = self.number("kv_tokens"), self.number("max_total_num_tokens")
        why = ""
        if allocated is not None and ready is not None and allocated != ready:
            why = f"the pool was resized from {allocated:.0f} to {ready:.0f} tokens after it was allocated"
        elif (bound := self.number("kv_tokens_upper_bound")) is not None and bound == self.slots and allocated is not None:
            why = f"the canary was installed for {bound:.0f} slots of reserved addresses; {allocated:.0f} were backed after graph capture"
        elif allocated is not None and self.page_size > 1 and 0 < self.slots - allocated < self.page_size:
            why = f"rounded down to a page of {self.page_size}"
        elif (cap := self.whole("server_args", "max_total_tokens")) is not None and ready is not None:
            why = f"--max-total-tokens {cap} caps the pool" if ready <= cap else ""
        rows = self.row("kv_tokens", "KV slots allocated", "tokens", allocated, self.slots, 0, why)
        rows += self.row("max_total_num_tokens", "KV slots when ready", "tokens", ready, self.slots, 0, why)
        small = self.number("swa_layer_tokens")
        if small:
            line = next((line for line in self.plan.lines if line.name == "kv_window_pool"), None)
            planned = None if line is None or line.item is None else float(line.item.terms["slots"])
            rows += self.row("swa_layer_tokens", "Window pool slots", "tokens", small, planned, 0, self._window_reason())
        return rows

    def _window_reason(self) -> str:
        full, small = self.number("full_layer_tokens"), self.number("swa_layer_tokens")
        if not full or not small:
            return ""
        return f"the log's window pool is {small / full:.3f} of the full one, the plan has {self.plan.settings.pool.swa_full_tokens_ratio}"

    def sizing(self) -> list[Row]:
        """The profiled pool from the free memory, and SGLang's own sizing line."""
        rows: list[Row] = []
        rank = self.plan.rank
        settings = self.plan.settings
        after, before = self.number("load_weight_avail_gb", "load_weight_avail_gb_min"), settings.memory.free_before_load_bytes
        fraction = settings.memory.mem_fraction_static
        tokens = self.number("kv_tokens")
        if after is not None and before is not None and fraction is not None and tokens is not None and isinstance(rank, RankKv):
            budget = kv_budget_bytes(int(after * GIB), before, fraction)
            cell = self._cell(rank)
            planned = int(budget // cell) // self.page_size * self.page_size
            # Both free-memory figures are rounded to a hundredth of a GiB.
            slack = 2 * ROUNDING_GIB * GIB / cell + self.page_size
            cap = self.whole("server_args", "max_total_tokens")
            why = f"--max-total-tokens {cap} caps the pool" if cap is not None and cap - self.page_size < tokens <= cap < planned else ""
            rows += self.row("pool_from_budget", "KV slots from free memory", "tokens", tokens, planned, slack, why)
        if (cell_size := self.inner("kv_pool_sizing", "cell_size")) is not None:
            planned_cell = self._cell(rank) if isinstance(rank, RankKv) else None
            # A figure that was stated came from printed sizes, which are rounded; one from layers and heads is exact.
            stated = self.plan.geometry.stated_bytes_per_token is not None
            slack = BYTES_PER_TOKEN_TOLERANCE * (planned_cell or 0.0) if stated else 0.0
            rows += self.row("cell_size", "Bytes per slot (cell_size)", "bytes/token", cell_size, planned_cell, slack)
        return rows

    def _cell(self, rank: RankKv) -> float:
        ratio = self.plan.settings.pool.swa_full_tokens_ratio if self.plan.geometry.window_pool else 0.0
        draft = next((line for line in self.plan.lines if line.name == "draft_kv_pool"), None)
        extra = 0.0 if draft is None or draft.item is None else float(draft.item.terms["bytes_per_slot"])
        return rank.pool_bytes("full") + ratio * rank.pool_bytes("swa") + extra

    def sizes(self) -> list[Row]:
        """Bytes per token of each pool line, from its sizes and its tokens; K and V apart where the plan knows them apart."""
        rows: list[Row] = []
        for kind, tokens, sizes in self._pool_lines():
            missing = self._missing_pool(kind)
            for half, size, parts in self._halves(kind, sizes):
                measured = bytes_per_token(size, tokens, self.page_size, parts)
                planned = self._per_token(kind, half)
                slack = max(measured.high - measured.value, BYTES_PER_TOKEN_TOLERANCE * (planned or 0.0))
                label = f"{half.upper()} bytes per token" + ("" if kind in ("target", "full") else f" ({kind})")
                name = f"{kind}_{half}_bytes_per_token"
                rows += self.row(name, label, "bytes/token", measured.value, planned, slack, missing=missing)
        return rows

    def _missing_pool(self, kind: str) -> str:
        draft = next((line.unknown for line in self.plan.lines if line.name == "draft_kv_pool"), None)
        unknown = draft if kind == "draft" else self.plan.rank
        return f"{unknown.text}; settled by {unknown.settle}" if isinstance(unknown, Unknown) else "the plan has no such pool"

    def _halves(self, kind: str, sizes: Mapping[str, float | None]) -> list[tuple[str, float, int]]:
        """(half, GiB, printed figures in it) of a pool line; K and V summed where the plan has one figure for both."""
        k, v, kv = (sizes.get(half) for half in ("k", "v", "kv"))
        if k is not None and v is not None and self._per_token(kind, "k") is None and self._per_token(kind, "kv") is not None:
            return [("kv", k + v, 2)]
        return [(half, size, 1) for half, size in (("k", k), ("v", v), ("kv", kv)) if size is not None]

    def _pool_lines(self) -> list[tuple[str, int, dict[str, float | None]]]:
        pools = self.observed.get("kv_pools")
        if isinstance(pools, Sequence) and pools and all(isinstance(pool, Mapping) and pool.get("kind") for pool in pools):
            entries = [(str(pool["kind"]), pool) for pool in pools]
        else:
            entries = [("target", {**self.observed, "tokens": self.observed.get("kv_tokens")})]
        found: list[tuple[str, int, dict[str, float | None]]] = []
        for kind, pool in entries:
            tokens = _number(pool.get("tokens"))
            sizes = {half: _number(pool.get(f"{half}_size_gb")) for half in ("k", "v", "kv")}
            if isinstance(tokens, int) and tokens > 0:
                found.append((kind, tokens, sizes))
        return found

    def _per_token(self, kind: str, half: str) -> float | None:
        rank = self.plan.rank
        if isinstance(rank, Unknown):
            return None
        if kind == "draft":
            draft = next((line for line in self.plan.lines if line.name == "draft_kv_pool"), None)
            whole = None if draft is None or draft.item is None else float(draft.item.terms["bytes_per_slot"])
            return whole if half == "kv" or whole is None else None
        pool = "swa" if kind == "swa" else "full"
        if half == "kv" or self.plan.geometry.stated_bytes_per_token is not None:
            return rank.pool_bytes(pool) if half == "kv" else None
        return rank.half_bytes(pool, half)

    def free_after_pool(self) -> list[Row]:
        after, end = (self.number(name, f"{name}_min") for name in ("load_weight_avail_gb", "memory_pool_end_avail_gb"))
        kv = [line for line in self.plan.lines if line.part in ("kv", "tables")]
        known = after is not None and all(line.bytes is not None for line in kv)
        planned = (after or 0.0) - sum(line.bytes or 0 for line in kv) / GIB if known else None
        upper = self.number("kv_tokens_upper_bound")
        why = "the pool only reserves addresses at this point; it is backed after graph capture" if upper is not None else ""
        missing = "the log does not state the free memory after loading" if after is None else "the bytes of the pool are not known"
        return self.row("memory_pool_end_avail_gb", "Free after the pool", "GiB", end, planned, FREE_MEMORY_TOLERANCE_GIB, why, missing)

    def canary(self) -> list[Row]:
        """Capacities of the install line, and the workspace SGLang reserved."""
        stated = self.observed.get("canary")
        if not isinstance(stated, Mapping):
            return []
        settings = self.plan.settings
        installed = self.whole("canary", "verify_capacity")
        try:
            capacities = LaunchCapacities.from_settings(settings)
        except ConfigError:
            return []
        rows: list[Row] = []
        reasons = {
            "verify_capacity": self._installed_reason(installed),
            "write_req_capacity": self._requests_reason(self.whole("canary", "write_req_capacity")),
            "write_entry_capacity": "",
        }
        for name, why in reasons.items():
            planned = getattr(capacities, name)
            rows += self.row(f"canary_{name}", f"Canary {name.replace('_', ' ')}", "entries", self.inner("canary", name), planned, 0, why)
        workspace = self.inner("post_capture", "canary_workspace_gb")
        if workspace is not None and installed is not None and installed % VERIFY_CAPACITY_FACTOR == 0:
            at_install = changed(settings, pool_slot_count=installed // VERIFY_CAPACITY_FACTOR)
            groups = len(buffer_groups(at_install))
            planned_gib = LaunchCapacities.from_settings(at_install).workspace_bytes(groups) / GIB
            rows += self.row("canary_workspace_gb", "Canary workspace reserved", "GiB", workspace, planned_gib, ROUNDING_GIB)
        return rows

    def _installed_reason(self, installed: int | None) -> str:
        if installed is None or installed % VERIFY_CAPACITY_FACTOR:
            return ""
        slots = installed // VERIFY_CAPACITY_FACTOR
        if slots in (self.number("kv_tokens"), self.number("kv_tokens_upper_bound")) and slots != self.slots:
            return f"the canary was installed for {slots} slots, before the pool was resized"
        return ""

    def _requests_reason(self, installed: int | None) -> str:
        """Why the install line has another request capacity: max(decode graph batch, request rows) of the moment it was printed."""
        before = self.whole("post_capture", "max_running_requests_before")
        if installed is not None and installed == before:
            return f"the canary was installed for {installed} requests, before the pool was resized"
        rows = self.number("max_running_requests")
        if installed is not None and rows is not None and installed > rows and self.number("cuda_graph_bs_max") is None:
            return f"the larger of {rows:.0f} request rows and the decode graphs, so those go up to {installed}"
        return ""

    def limits(self) -> list[Row]:
        settings = self.plan.settings
        requests = self.number("max_running_requests")
        why = ""
        tokens, context = self.number("max_total_num_tokens"), self.number("context_len")
        if requests is not None and tokens is not None and context is not None and context >= 1:
            asked = self.whole("server_args", "max_running_requests")
            choice = running_requests(int(tokens), int(context), asked=asked)
            why = f"SGLang's choice for this pool: {choice.formula}" if choice.value == requests else ""
        if (capped := self.number("mamba_cache_size")) is not None and not why:
            why = f"the state cache of {capped:.0f} slots limits the requests"
        rows = self.row("max_running_requests", "Running requests", "requests", requests, settings.pool.req_to_token_pool_size, 0, why)
        spare = ROW_SPARE_TOKENS + (settings.batch.speculative_num_draft_tokens or 0)
        planned = settings.pool.max_seq_len_per_req - spare
        return rows + self.row("context_len", "Context", "tokens", context, planned)

    def rest(self) -> list[Row]:
        graphs = self.row(
            "cuda_graph_mem_gb", "CUDA graphs", "GiB", self.largest("cuda_graph_mem_gb"), self.gib("graphs"), 2 * ROUNDING_GIB
        )
        free = self.number("available_gpu_mem_gb", "available_gpu_mem_gb_min")
        headroom = self.plan.headroom_bytes
        # Between forwards the canary's workspace is not allocated, so an idle server shows it as free.
        planned = None if headroom is None else headroom / GIB + (self.gib("canary_workspace") or 0.0)
        missing = ", ".join(line.in_words for line in self.plan.unknown_lines)
        why = f"the plan does not know: {missing}" if missing else ""
        no_budget = "neither the memory of the device nor what was free before loading is stated"
        return graphs + self.row("available_gpu_mem_gb", "Free when ready", "GiB", free, planned, FREE_MEMORY_TOLERANCE_GIB, why, no_budget)
