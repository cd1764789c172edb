"""A start-up log beside the plan, line by line: what agrees, what differs and why, what differs without a reason.

Names of observed values are those that the log importer gives (`kv_tokens`, `k_size_gb`, `canary`, ...). SGLang prints GiB as "GB" with two
digits, so a size is known to half a hundredth of a GiB and bytes per token only as well as that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvcanary.config.capacities import LaunchCapacities, buffer_groups
from kvcanary.config.defaults import ROW_SPARE_TOKENS, kv_budget_bytes, running_requests
from kvcanary.config.geometry import Unknown
from kvcanary.config.kv_parts import RankKv
from kvcanary.config.memory import MemoryPlan
from kvcanary.config.solve import changed
from kvcanary.errors import ConfigError
from kvcanary.layout import VERIFY_CAPACITY_FACTOR
from kvcanary.units import GIB

ROUNDING_GIB = 0.005
BYTES_PER_TOKEN_TOLERANCE = 0.005
# Allocator granularity, contexts of libraries and small tables that no line counts; seen below a tenth of a GiB in complete logs.
FREE_MEMORY_TOLERANCE_GIB = 0.15


class Status(StrEnum):
    """agrees: within the rounding of the log · explained: differs for a stated reason · unexplained · not planned: no figure to compare."""

    AGREES = "agrees"
    EXPLAINED = "explained"
    UNEXPLAINED = "unexplained"
    NOT_PLANNED = "not planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value of the log beside the plan's. `unit` is tokens, requests, entries, GiB or bytes/token; `why` is one sentence or empty."""

    name: str
    label: str
    unit: str
    observed: float
    planned: float | None
    status: Status
    why: str = ""

    @property
    def difference(self) -> float | None:
        """Observed less planned, in the unit of the row."""
        return None if self.planned is None else self.observed - self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """All rows in the order of a start-up, and one sentence."""

    rows: tuple[Row, ...]

    @property
    def unexplained(self) -> tuple[Row, ...]:
        """Rows that differ without a stated reason."""
        return tuple(row for row in self.rows if row.status is Status.UNEXPLAINED)

    @property
    def text(self) -> str:
        """'7 of 9 values agree, 1 is explained, 1 is not: K size'."""
        if not self.rows:
            return "the log states nothing that the plan has"
        count = {status: sum(row.status is status for row in self.rows) for status in Status}
        open_rows = f": {', '.join(row.label for row in self.unexplained)}" if self.unexplained else ""
        return (
            f"{count[Status.AGREES]} of {len(self.rows)} values agree, {count[Status.EXPLAINED]} differ for a stated reason, "
            f"{count[Status.NOT_PLANNED]} have no figure in the plan, {count[Status.UNEXPLAINED]} unexplained{open_rows}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes per token from a printed size: best value and the range that the rounding leaves."""

    value: float
    low: float
    high: float


def bytes_per_token(size_gib: float, tokens: int, page_size: int) -> Measured:
    """K, V or KV bytes of one token on one rank from a pool line; the printed size includes the spare page. ConfigError without tokens."""
    rows = tokens + page_size
    if tokens < 1 or page_size < 1:
        raise ConfigError(f"a pool line needs at least 1 token and a page of 1, got {tokens} and {page_size}")
    low, high = max(0.0, size_gib - ROUNDING_GIB), size_gib + ROUNDING_GIB
    return Measured(value=size_gib * GIB / rows, low=low * GIB / rows, high=high * GIB / rows)


def reconcile(plan: MemoryPlan, observed: Mapping[str, Any]) -> Reconciliation:
    """Compare every value the log states with the plan. Values that are null or missing give no row."""
    log = _Log(plan, observed)
    rows = [*log.weights(), *log.pool(), *log.sizing(), *log.sizes(), *log.free_after_pool(), *log.canary(), *log.limits(), *log.rest()]
    return Reconciliation(rows=tuple(rows))


class _Log:
    """Reads observed values and makes rows; all sizes inside are GiB."""

    def __init__(self, plan: MemoryPlan, observed: Mapping[str, Any]) -> None:
        self.plan, self.observed = plan, observed
        arguments = observed.get("server_args") or {}
        self.page_size = arguments.get("page_size") or plan.settings.pool.page_size
        self.slots = plan.settings.pool.pool_slot_count

    def number(self, *names: str) -> float | None:
        """The first of the names that holds a number; a per-rank minimum stands for the rank that decides."""
        for name in names:
            value = self.observed.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value
        return None

    def gib(self, name: str) -> float | None:
        """Bytes of a plan line in GiB, None where it is missing or unknown."""
        line = next((line for line in self.plan.lines if line.name == name), None)
        return None if line is None or line.bytes is None else line.bytes / GIB

    def row(
        self, name: str, label: str, unit: str, observed: float | None, planned: float | None, tolerance: float = 0.0, why: str = ""
    ) -> list[Row]:
        """A row, or none without an observation; `why` is the reason to give if the difference exceeds the tolerance."""
        if observed is None:
            return []
        if planned is None:
            status, reason = Status.NOT_PLANNED, "the plan has no figure for it"
        elif abs(observed - planned) <= tolerance:
            status, reason = Status.AGREES, ""
        else:
            status, reason = (Status.EXPLAINED, why) if why else (Status.UNEXPLAINED, "")
        return [Row(name=name, label=label, unit=unit, observed=observed, planned=planned, status=status, why=reason)]

    def weights(self) -> list[Row]:
        observed = self.number("load_weight_mem_gb")
        return self.row("load_weight_mem_gb", "Weights", "GiB", observed, self.gib("weights"), 2 * ROUNDING_GIB)

    def pool(self) -> list[Row]:
        allocated, ready = self.number("kv_tokens"), self.number("max_total_num_tokens")
        why = ""
        if allocated is not None and ready is not None and allocated != ready:
            why = f"the pool was resized from {allocated:.0f} to {ready:.0f} tokens after it was allocated"
        elif allocated is not None and self.page_size > 1 and 0 < self.slots - allocated < self.page_size:
            why = f"rounded down to a page of {self.page_size}"
        elif (cap := (self.observed.get("server_args") or {}).get("max_total_tokens")) is not None and ready is not None:
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
        after, before = self.number("load_weight_avail_gb"), settings.memory.free_before_load_bytes
        fraction = settings.memory.mem_fraction_static
        tokens = self.number("kv_tokens")
        if after is not None and before is not None and fraction is not None and tokens is not None and isinstance(rank, RankKv):
            budget = kv_budget_bytes(int(after * GIB), before, fraction)
            cell = self._cell(rank)
            planned = int(budget // cell) // self.page_size * self.page_size
            # Both free-memory figures are rounded to a hundredth of a GiB.
            slack = 2 * ROUNDING_GIB * GIB / cell + self.page_size
            rows += self.row("pool_from_budget", "KV slots from free memory", "tokens", tokens, planned, slack)
        sizing = self.observed.get("kv_pool_sizing")
        if isinstance(sizing, Mapping) and sizing.get("cell_size") is not None:
            planned_cell = self._cell(rank) if isinstance(rank, RankKv) else None
            rows += self.row("cell_size", "Bytes per slot (cell_size)", "bytes/token", float(sizing["cell_size"]), planned_cell)
        return rows

    def _cell(self, rank: RankKv) -> float:
        ratio = self.plan.settings.pool.swa_full_tokens_ratio if self.plan.geometry.window_pool else 0.0
        draft = next((line for line in self.plan.lines if line.name == "draft_kv_pool"), None)
        extra = 0.0 if draft is None or draft.item is None else float(draft.item.terms["bytes_per_slot"])
        return rank.pool_bytes("full") + ratio * rank.pool_bytes("swa") + extra

    def sizes(self) -> list[Row]:
        """Bytes per token of each pool line, from its sizes and its tokens."""
        rows: list[Row] = []
        for kind, tokens, sizes in self._pool_lines():
            for half, size in sizes.items():
                if size is None or not tokens:
                    continue
                measured = bytes_per_token(size, tokens, self.page_size)
                planned = self._per_token(kind, half)
                slack = max(measured.high - measured.value, BYTES_PER_TOKEN_TOLERANCE * (planned or 0.0))
                label = f"{half.upper()} bytes per token" + ("" if kind in ("target", "full") else f" ({kind})")
                rows += self.row(f"{kind}_{half}_bytes_per_token", label, "bytes/token", measured.value, planned, slack)
        return rows

    def _pool_lines(self) -> list[tuple[str, int, dict[str, float | None]]]:
        pools = self.observed.get("kv_pools")
        if isinstance(pools, Sequence) and pools and all(isinstance(pool, Mapping) and pool.get("kind") for pool in pools):
            entries = [(str(pool["kind"]), pool) for pool in pools]
        else:
            entries = [("target", {**self.observed, "tokens": self.observed.get("kv_tokens")})]
        found: list[tuple[str, int, dict[str, float | None]]] = []
        for kind, pool in entries:
            tokens = pool.get("tokens")
            sizes = {half: pool.get(f"{half}_size_gb") for half in ("k", "v", "kv")}
            if isinstance(tokens, int):
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
        after, end = self.number("load_weight_avail_gb"), self.number("memory_pool_end_avail_gb", "memory_pool_end_avail_gb_min")
        kv = [line for line in self.plan.lines if line.part in ("kv", "tables")]
        known = after is not None and all(line.bytes is not None for line in kv)
        planned = (after or 0.0) - sum(line.bytes or 0 for line in kv) / GIB if known else None
        upper = self.number("kv_tokens_upper_bound")
        why = "the pool only reserves addresses at this point; it is backed after graph capture" if upper is not None else ""
        return self.row("memory_pool_end_avail_gb", "Free after the pool", "GiB", end, planned, FREE_MEMORY_TOLERANCE_GIB, why)

    def canary(self) -> list[Row]:
        """Capacities of the install line, and the workspace SGLang reserved."""
        stated = self.observed.get("canary")
        if not isinstance(stated, Mapping):
            return []
        settings = self.plan.settings
        installed = stated.get("verify_capacity")
        try:
            capacities = LaunchCapacities.from_settings(settings)
        except ConfigError:
            return []
        rows: list[Row] = []
        for name, planned in (
            ("verify_capacity", capacities.verify_capacity),
            ("write_req_capacity", capacities.write_req_capacity),
            ("write_entry_capacity", capacities.write_entry_capacity),
        ):
            observed = stated.get(name)
            why = self._installed_reason(installed) if name == "verify_capacity" else ""
            rows += self.row(f"canary_{name}", f"Canary {name.replace('_', ' ')}", "entries", observed, planned, 0, why)
        workspace = (self.observed.get("post_capture") or {}).get("canary_workspace_gb")
        if workspace is not None and isinstance(installed, int) and installed % VERIFY_CAPACITY_FACTOR == 0:
            at_install = changed(settings, pool_slot_count=installed // VERIFY_CAPACITY_FACTOR)
            groups = len(buffer_groups(at_install))
            planned_gib = LaunchCapacities.from_settings(at_install).workspace_bytes(groups) / GIB
            rows += self.row("canary_workspace_gb", "Canary workspace reserved", "GiB", workspace, planned_gib, ROUNDING_GIB)
        return rows

    def _installed_reason(self, installed: Any) -> str:
        if not isinstance(installed, int) or installed % VERIFY_CAPACITY_FACTOR:
            return ""
        slots = installed // VERIFY_CAPACITY_FACTOR
        if slots in (self.number("kv_tokens"), self.number("kv_tokens_upper_bound")) and slots != self.slots:
            return f"the canary was installed for {slots} slots, before the pool was resized"
        return ""

    def limits(self) -> list[Row]:
        settings = self.plan.settings
        requests = self.number("max_running_requests")
        why = ""
        tokens, context = self.number("max_total_num_tokens"), self.number("context_len")
        if requests is not None and tokens and context:
            asked = (self.observed.get("server_args") or {}).get("max_running_requests")
            choice = running_requests(int(tokens), int(context), asked=asked)
            why = f"SGLang's choice for this pool: {choice.formula}" if choice.value == requests else ""
        if (capped := self.observed.get("mamba_cache_size")) is not None and not why:
            why = f"the state cache of {capped} slots limits the requests"
        rows = self.row("max_running_requests", "Running requests", "requests", requests, settings.pool.req_to_token_pool_size, 0, why)
        spare = ROW_SPARE_TOKENS + (settings.batch.speculative_num_draft_tokens or 0)
        planned = settings.pool.max_seq_len_per_req - spare
        return rows + self.row("context_len", "Context", "tokens", context, planned)

    def rest(self) -> list[Row]:
        graphs = self.row("cuda_graph_mem_gb", "CUDA graphs", "GiB", self.number("cuda_graph_mem_gb"), self.gib("graphs"), 2 * ROUNDING_GIB)
        free = self.number("available_gpu_mem_gb", "available_gpu_mem_gb_min")
        headroom = self.plan.headroom_bytes
        # Between forwards the canary's workspace is not allocated, so an idle server shows it as free.
        planned = None if headroom is None else headroom / GIB + (self.gib("canary_workspace") or 0.0)
        missing = ", ".join(line.label for line in self.plan.unknown_lines)
        why = f"the plan does not know: {missing}" if missing else ""
        return graphs + self.row("available_gpu_mem_gb", "Free when ready", "GiB", free, planned, FREE_MEMORY_TOLERANCE_GIB, why)
