# SPDX-License-Identifier: Apache-2.0
"""Registers, shared memory, spills, occupancy and instruction mix of a compiled stage, read from its CUBIN."""

from __future__ import annotations

import collections
import functools
import re
from dataclasses import dataclass

from cutegemm.arch.sm90 import REGISTERS_PER_SM, WARP
from cutegemm.compiling import resources
from cutegemm.errors import CompileError

# Limits of an sm_90 SM: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and Hopper
# Tuning Guide, "Occupancy".
REGISTERS_PER_WARP_UNIT = 256  # allocation unit of registers per warp
WARPS_PER_SM = 64
CTAS_PER_SM = 32
SMEM_PER_SM = 233_472  # bytes, 228 KiB
SMEM_RESERVED_PER_CTA = 1_024  # bytes reserved by the system per resident CTA

# One instruction of nvdisasm's listing: address comment, optional predicate, opcode with modifiers.
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)", re.MULTILINE)


@dataclass(frozen=True)
class Resources:
    """Resources of one kernel.

    registers are per thread; stack is bytes of local memory per thread, which holds spilled registers; smem is bytes
    per CTA, static plus dynamic; ctas_per_sm is the occupancy, and bound is the limiting resource.
    """

    registers: int
    stack: int
    smem: int
    threads: int
    ctas_per_sm: int
    bound: str

    @property
    def occupancy(self) -> float:
        """Resident warps over the 64 that fit on an SM."""
        return self.ctas_per_sm * -(-self.threads // WARP) / WARPS_PER_SM


def occupancy(registers: int, threads: int, smem: int) -> tuple[int, str]:
    """Return (resident CTAs per SM, the limiting resource).

    registers are per thread, smem is bytes per CTA.
    """
    warps = -(-threads // WARP)
    per_warp = -(-registers * WARP // REGISTERS_PER_WARP_UNIT) * REGISTERS_PER_WARP_UNIT
    limits = {
        "registers": REGISTERS_PER_SM // (per_warp * warps),
        "shared memory": SMEM_PER_SM // (smem + SMEM_RESERVED_PER_CTA),
        "warps": WARPS_PER_SM // warps,
        "CTA slots": CTAS_PER_SM,
    }
    bound = min(limits, key=limits.__getitem__)
    return limits[bound], bound


def read_resources(cubin: bytes, kernel: str, threads: int, dynamic_smem: int) -> Resources:
    """Read one kernel's resources from a CUBIN.

    Raises:
        CompileError: the CUBIN has no kernel of that name.
    """
    kernels = resources.kernels(cubin)
    if kernel not in kernels:
        raise CompileError(f"kernel={kernel!r}: not in the CUBIN; it holds {sorted(kernels)}")
    code = kernels[kernel]
    smem = code.static_smem_bytes + dynamic_smem
    ctas, bound = occupancy(code.registers, threads, smem)
    return Resources(
        registers=code.registers,
        stack=code.frame_bytes,
        smem=smem,
        threads=threads,
        ctas_per_sm=ctas,
        bound=bound,
    )


@functools.lru_cache(maxsize=64)
def disassemble(cubin: bytes) -> str:
    """Return the SASS of a CUBIN.

    Raises:
        CompileError: nvdisasm is missing or rejects the file.
    """
    return resources.sass(cubin)


def kernel_sass(sass: str, kernel: str) -> str:
    """Return the part of a disassembly that belongs to one kernel."""
    start = sass.index(f".text.{kernel}:")
    end = sass.find("\n//----", start)
    return sass[start : end if end > 0 else len(sass)]


def instruction_mix(sass: str, kernel: str) -> collections.Counter[str]:
    """Count one kernel's static SASS instructions by full opcode, NOP padding left out."""
    counts = collections.Counter(_INSTRUCTION.findall(kernel_sass(sass, kernel)))
    counts.pop("NOP", None)
    return counts
