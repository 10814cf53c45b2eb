# SPDX-License-Identifier: Apache-2.0
"""What a compiled stage costs: registers, shared memory, spills, occupancy and instruction mix.

Everything is read from the CUBIN, so no GPU is needed. Registers, stack and shared memory come from the
ELF itself, SASS from the `nvdisasm` of the `nvidia-cuda-nvdisasm` wheel.
"""

from __future__ import annotations

import collections
import functools
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass

from cuda import pathfinder

from cutegemm.errors import CompileError
from cutegemm.hardware import REGISTERS_PER_SM, WARP

# How one sm_90 multiprocessor is shared out: CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability", and Hopper Tuning Guide, "Occupancy".
REGISTERS_PER_WARP_UNIT = 256  # registers are handed to a warp in units of this many
WARPS_PER_SM = 64
CTAS_PER_SM = 32
SMEM_PER_SM = 233_472  # bytes, 228 KiB
SMEM_RESERVED_PER_CTA = 1_024  # bytes that the system keeps for each resident CTA

_ATTRIBUTE_REGISTERS = 0x2F  # EIATTR_REGCOUNT in .nv.info: (symbol index, value)
_ATTRIBUTE_FRAME = 0x11  # EIATTR_FRAME_SIZE
_FORMAT_SIZED = 4  # attribute format whose payload has an explicit size
# One instruction of nvdisasm's listing: address comment, optional predicate, opcode with modifiers.
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)", re.MULTILINE)


@dataclass(frozen=True)
class Resources:
    """What one kernel takes from a multiprocessor.

    registers are per thread; stack is bytes of local memory per thread, which is where spilled registers
    go; smem is bytes per CTA, static plus dynamic; ctas_per_sm is the occupancy and bound names its limit.
    """

    registers: int
    stack: int
    smem: int
    threads: int
    ctas_per_sm: int
    bound: str

    @property
    def occupancy(self) -> float:
        """Resident warps over the 64 a multiprocessor can hold."""
        return self.ctas_per_sm * -(-self.threads // WARP) / WARPS_PER_SM


def occupancy(registers: int, threads: int, smem: int) -> tuple[int, str]:
    """Return (CTAs resident per SM, the resource that bounds them).

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
        CompileError: the CUBIN holds no kernel of that name.
    """
    names, sections = _sections(cubin)
    if f".text.{kernel}" not in sections:
        raise CompileError(f"kernel={kernel!r}: not in the CUBIN; it holds {sorted(names)}")
    info = _attributes(cubin, sections)
    registers = info[_ATTRIBUTE_REGISTERS][kernel]
    smem = _static_smem(sections, kernel) + dynamic_smem
    ctas, bound = occupancy(registers, threads, smem)
    return Resources(
        registers=registers,
        stack=info[_ATTRIBUTE_FRAME].get(kernel, 0),
        smem=smem,
        threads=threads,
        ctas_per_sm=ctas,
        bound=bound,
    )


def _static_smem(sections: dict[str, tuple[int, int, int]], kernel: str) -> int:
    """Return the bytes of `__shared__` variables; the section begins with the system's reserved part."""
    if f".nv.shared.{kernel}" not in sections:
        return 0
    return sections[f".nv.shared.{kernel}"][2] - SMEM_RESERVED_PER_CTA


def _sections(elf: bytes) -> tuple[set[str], dict[str, tuple[int, int, int]]]:
    """Return (kernel names, section name -> (index, file offset, size)) of a 64-bit ELF."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry_size) for i in range(count)]
    names_offset = headers[names_index][4]
    sections = {}
    for index, header in enumerate(headers):
        sections[_text(elf, names_offset + header[0])] = (index, header[4], header[5])
    kernels = {name[len(".text.") :] for name in sections if name.startswith(".text.")}
    return kernels, sections


def _text(elf: bytes, offset: int) -> str:
    return elf[offset : elf.index(b"\0", offset)].decode()


def _attributes(elf: bytes, sections: dict[str, tuple[int, int, int]]) -> dict[int, dict[str, int]]:
    """Return attribute -> kernel name -> value from `.nv.info`."""
    _, symbols, _ = sections[".symtab"]
    _, strings, _ = sections[".strtab"]
    _, at, size = sections[".nv.info"]
    found: dict[int, dict[str, int]] = collections.defaultdict(dict)
    end = at + size
    while at < end:
        kind, attribute, payload = struct.unpack_from("<BBH", elf, at)
        at += 4
        if kind == _FORMAT_SIZED:
            if payload == 8:
                symbol, value = struct.unpack_from("<II", elf, at)
                (name,) = struct.unpack_from("<I", elf, symbols + 24 * symbol)
                found[attribute][_text(elf, strings + name)] = value
            at += payload
    return found


@functools.lru_cache(maxsize=64)
def disassemble(cubin: bytes) -> str:
    """Return the SASS of a CUBIN.

    Raises:
        CompileError: nvdisasm is missing or rejects the file.
    """
    tool = pathfinder.find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        raise CompileError("nvdisasm: not found; SASS needs it; pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"nvdisasm: {done.stderr.strip()}")
    return done.stdout


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
