"""Canary messages as a server prints them, written down from the format alone and not with the code under test."""

from __future__ import annotations

from dataclasses import dataclass

TAGS = ("HEAD_K_FULL", "TAIL_K_FULL", "SWEEP_K_FULL", "HEAD_K_SWA", "TAIL_K_SWA", "TAIL_V_FULL")


@dataclass(frozen=True)
class Row:
    """One violation; aux is the expected hash, or the expected position of a write row."""

    tag: str = "TAIL_K_FULL"
    reasons: tuple[str, ...] = ("verify_real_kv_hash",)
    slot: int = 812
    position: int = 40
    token: int = 3001
    expected_token: int = -1
    stored_hash: int = 0x1111222233334444
    aux: int = 0x1111222233334444

    def line(self) -> str:
        return (
            f"kv_canary violation: launch_tag={self.tag} fail_reason={'+'.join(self.reasons) or 'none'} slot_idx={self.slot} "
            f"position={self.position} stored_token={self.token} expected_token={self.expected_token} "
            f"stored_chain_hash=0x{self.stored_hash:016x} expected_aux=0x{self.aux & (1 << 64) - 1:016x}"
        )

    def message(self, *, total: int = 1, step: int = 10, overflow: bool = False) -> str:
        write = any(reason.startswith("write") for reason in self.reasons)
        token = f"token_id={self.expected_token} " if write or "verify_token" in self.reasons else ""
        expected = f"token_id={self.expected_token}   position={self.aux}" if write else f"{token}prev_hash=0x{self.aux:016x}"
        said = "actual" if write else "stored"
        kind = self.tag.lower() if self.tag.startswith("SWEEP") else f"per_forward_{self.tag.lower()}"
        return "\n".join(
            (
                self.line(),
                f"KV cache canary violation detected (kernel_kind={self.tag}, slot_idx={self.slot}, position={self.position})",
                f"canary_kind:       {kind}",
                f"  fail_reasons: {' '.join(self.reasons) or 'none'}",
                f"  {said}:   token_id={self.token}   position={self.position} prev_hash=0x{self.stored_hash:016x}",
                f"  expected: {expected}",
                f"  total_violations={total} ring_overflow={overflow} step_when_pumped={step}",
            )
        )


def prefix(rank: str = "TP0", time: str = "2027-02-03 04:05:06") -> str:
    return f"[{time} {rank}] " if rank else f"[{time}] "


def stats(
    step: int, violations: int, *, rank: str = "TP0", protected: int = 5000, sweeps: int = 0, time: str = "2027-02-03 04:05:07"
) -> str:
    return (
        f"{prefix(rank, time)}[canary] step={step} protected_tokens={protected} sweep_passes={sweeps} violations={violations} "
        "launch_tags_active=6/12"
    )


def install(rank: str = "TP0", *, mode: str = "LOG", ring: int = 1024, sweep: int = 0, real: str = "PARTIAL", capacity: int = 3000) -> str:
    return (
        f"{prefix(rank)}install_canary: disaggregation_mode=null config=CanaryConfig(mode=<CanaryMode.{mode}: '{mode.lower()}'>, "
        f"ring_capacity={ring}, sweep_interval={sweep}, real_kv_hash_mode=<RealKvHashMode.{real}: 1>, enable_write_input_assert=False, "
        "enable_verify_token_assert=False, stats_print_every_n_steps=100) perturb_config=PerturbConfig(req_to_token_prob=0.0, "
        "real_kv_used_prob=0.0, real_kv_unused_cache_prob=0.0, real_kv_post_forward_prob=0.0, target_group_kind=None, warmup_steps=50) "
        f"launch_capacities=CanaryLaunchCapacities(per_forward_verify_capacity={capacity}, per_forward_write_req_capacity=8, "
        "per_forward_write_entry_capacity=128) n_buffer_groups=1 buffer_group_kinds=['FULL'] swa_window_size=0 speculative_num_steps=1"
    )
