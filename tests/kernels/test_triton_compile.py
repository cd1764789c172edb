"""Every Triton kernel, compiled ahead of time for the GPUs that SGLang serves on; no GPU is needed and no spill is allowed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from kvcanary.kernels import triton_gpu  # noqa: E402
from kvcanary.kernels.triton_ops import plan, stamp, verify  # noqa: E402

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
WORDS, INTS = "*i64", "i32"
_INT32_POINTERS = {"table", "oracle", "num_valid", "enable", "num_valid_reqs", "write_index", "position_assert"}
_BYTE_POINTERS = {"slot_flags"}
_WORD_POINTERS = {
    "rows", "prefix_lens", "extend_lens", "lut", "valid_lens", "entry_starts", "offsets", "seeds", "records", "ring_rows", "kernel_runs",
    "slot_runs", "coverage", "slot_indices", "expected_tokens", "expected_positions", "prev_slot_indices", "slots", "tokens", "positions",
    "words_0", "words_1", "words_2", "words_3",
}  # fmt: skip
_PAGES = {f"PAGE_{index}": size for index, size in enumerate((1, 16, 64, 3))}
_FLAGS = {"HAS_COVERAGE": True, "HAS_FLAGS": True}


def hashed(num_sources: int) -> dict[str, int]:
    return {"NUM_SOURCES": num_sources, **_PAGES}


# name -> kernel, its constants with everything optional switched on, warps of a program (a function of the warp size).
KERNELS = {
    "plan_offsets": (plan.plan_offsets, {"HAS_LUT": True, "BLOCK": triton_gpu.SCAN_BLOCK}, 4),
    "plan_entries": (plan.plan_entries, {"HAS_LUT": True, "HAS_ORACLE": True, "BLOCK": triton_gpu.ENTRY_BLOCK}, 4),
    "fold_tokens, 1 source": (stamp.fold_tokens, {**hashed(1), "BLOCK": triton_gpu.TOKEN_BLOCK}, 4),
    "fold_tokens, 4 sources": (stamp.fold_tokens, {**hashed(4), "BLOCK": triton_gpu.TOKEN_BLOCK}, 4),
    "walk_chains": (stamp.walk_chains, {"STORE_NO_HASH": True, "HAS_EXPECTED": True, "HAS_POSITION_ASSERT": True, **_FLAGS}, 1),
    "verify, none": (verify.verify_entries, {**hashed(0), "CHECK_TOKENS": True, **_FLAGS, "BLOCK": triton_gpu.ENTRY_BLOCK}, 4),
    "verify, 1 source": (verify.verify_entries, {**hashed(1), "CHECK_TOKENS": True, **_FLAGS, "BLOCK": triton_gpu.ENTRY_BLOCK}, 4),
    "verify, 4 sources": (verify.verify_entries, {**hashed(4), "CHECK_TOKENS": True, **_FLAGS, "BLOCK": triton_gpu.ENTRY_BLOCK}, 4),
}


def compile_for(target: GPUTarget, kernel: Callable[..., None], constants: dict[str, int], num_warps: int):
    """The kernel as a launch with 16-byte aligned tensors would compile it; integers are not specialised."""
    if "LANES" in kernel.arg_names:
        constants = {**constants, "LANES": target.warp_size}
    signature = {name: "constexpr" if name in constants else type_of(name) for name in kernel.arg_names}
    aligned = {(index,): [["tt.divisibility", 16]] for index, name in enumerate(kernel.arg_names) if signature[name].startswith("*")}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=target, options={"num_warps": num_warps})


def type_of(name: str) -> str:
    if name in _INT32_POINTERS:
        return "*i32"
    if name in _BYTE_POINTERS:
        return "*u8"
    return WORDS if name in _WORD_POINTERS else INTS


def resources(target: GPUTarget, compiled, folder) -> tuple[int, int]:
    """(registers per thread, spilled values or bytes), from ptxas for NVIDIA and from the code object's metadata for AMD."""
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        spills = [int(found) for found in re.findall(r"\.[sv]gpr_spill_count:\s*(\d+)", text)]
        scratch = [int(found) for found in re.findall(r"\.private_segment_fixed_size:\s*(\d+)", text)]
        assert (len(spills), len(scratch)) == (2, 1), "the metadata of one kernel was expected"
        return int(re.findall(r"\.vgpr_count:\s*(\d+)", text)[0]), sum(spills) + scratch[0]
    path = folder / "kernel.ptx"
    path.write_text(compiled.asm["ptx"])
    arch = re.findall(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)[0]
    command = [get_ptxas(target.arch).path, "-v", f"--gpu-name={arch}", str(path), "-o", str(folder / "kernel.cubin")]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spills = [int(found) for found in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]
    assert len(spills) == 2, log
    return int(re.findall(r"Used (\d+) registers", log)[0]), sum(spills)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_without_spills(name, target, tmp_path, record_property):
    kernel, constants, num_warps = KERNELS[name]
    compiled = compile_for(TARGETS[target], kernel, constants, num_warps)
    registers, spilled = resources(TARGETS[target], compiled, tmp_path)
    record_property("registers", registers)
    record_property("spilled", spilled)
    print(f"{name:24} {target:8} {registers:4} registers, {spilled} spilled")
    assert registers > 0
    assert spilled == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_real_kv_is_loaded_sixteen_bytes_at_a_time(target):
    kernel, constants, num_warps = KERNELS["fold_tokens, 1 source"]
    ptx = compile_for(TARGETS[target], kernel, constants, num_warps).asm["ptx"]
    assert re.search(r"ld\.global\S*\.v2\.b64|ld\.global\S*\.v4\.b32", ptx)
