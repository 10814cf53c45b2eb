# SPDX-License-Identifier: Apache-2.0
"""A compiled kernel's resources, read from its PTX and cubin without a GPU or CUDA tools; and its SASS.

Source of the ELF attributes: the cubin's .nv.info section as ptxas writes it (EIATTR records). The ids were checked
against cuobjdump --dump-resource-usage.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from cutegemm.errors import CompileError

_EIATTR_REGCOUNT = 0x2F
_EIATTR_FRAME_SIZE = 0x11
_EIFMT_SVAL = 4  # record with an explicit size
_SYMBOL_BYTES = 24  # of an entry of a 64-bit ELF's symbol table
_SMEM_RESERVED = 1024  # bytes of a kernel's .nv.shared section that CUDA reserves

# bytes of coordinates and addresses that are spilled outside of the mainloop and reloaded once per tile
ADDRESS_SPILL_BYTES = 24

_FEATURES = {  # name -> pattern in PTX
    "wgmma": r"wgmma\.mma_async",
    "tma_load": r"cp\.async\.bulk\.tensor\.\d+d\.shared",
    "tma_multicast": r"cp\.async\.bulk\.tensor\.\d+d\.shared::cluster[\w:.]*multicast",
    "tma_store": r"cp\.async\.bulk\.tensor\.\d+d\.global",
    "setmaxnreg": r"setmaxnreg",
    "stmatrix": r"stmatrix",
    "fma.f32": r"fma\.rn\.f32",
    "ld.global": r"ld\.global",
    "st.global": r"st\.global",
}


class SpillWarning(RuntimeWarning):
    """Threads of a compiled kernel spill registers to local memory."""


@dataclass(frozen=True)
class Resources:
    """The resources of one kernel."""

    registers: int  # per thread at launch (setmaxnreg may move them between warpgroups later)
    frame_bytes: int  # local-memory stack per thread; more than 0 means spills or indexed arrays
    smem_bytes: int  # dynamic shared memory per CTA
    code_bytes: int  # machine code
    threads: int  # per CTA
    instructions: dict[str, int] = field(
        default_factory=dict
    )  # counts of characteristic instructions in the PTX

    @property
    def spills(self) -> bool:
        """Whether threads spill more than a few coordinates and addresses."""
        return self.frame_bytes > ADDRESS_SPILL_BYTES

    def __str__(self) -> str:
        uses = ", ".join(f"{name} x{count}" for name, count in self.instructions.items() if count)
        spills = "no spills" if self.frame_bytes == 0 else f"{self.frame_bytes} B spilled per thread"
        return (
            f"{self.registers} registers x {self.threads} threads, {spills}, {self.smem_bytes:,} B shared memory, "
            f"{self.code_bytes:,} B code; {uses}"
        )


@dataclass(frozen=True)
class KernelCode:
    """A cubin's figures of one kernel."""

    registers: int  # per thread at launch
    frame_bytes: int  # local-memory stack per thread
    static_smem_bytes: int  # `__shared__` variables, per CTA
    code_bytes: int  # machine code


def kernels(cubin: bytes) -> dict[str, KernelCode]:
    """Every kernel of a cubin by name.

    Raises:
        CompileError: the cubin is not an ELF file, or holds no kernel.
    """
    if cubin[:4] != b"\x7fELF":
        raise CompileError("cubin is not an ELF file")
    sections = _elf_sections(cubin)
    codes = {}
    if ".nv.info" in sections:
        for name, attributes in _attributes(cubin, sections).items():
            if _EIATTR_REGCOUNT in attributes and f".text.{name}" in sections:
                shared = sections.get(f".nv.shared.{name}")
                codes[name] = KernelCode(
                    registers=attributes[_EIATTR_REGCOUNT],
                    frame_bytes=attributes.get(_EIATTR_FRAME_SIZE, 0),
                    static_smem_bytes=shared[1] - _SMEM_RESERVED if shared else 0,
                    code_bytes=sections[f".text.{name}"][1],
                )
    if not codes:
        raise CompileError("cubin holds no kernel")
    return codes


def measure(ptx: str, cubin: bytes, smem_bytes: int) -> Resources:
    """Read a kernel's resources from its PTX and its cubin, which holds only that kernel.

    Raises:
        CompileError: the cubin is not an ELF file, or holds no kernel.
    """
    (code, *_) = kernels(cubin).values()
    block = re.search(r"\.reqntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", ptx)
    threads = math.prod(int(extent or 1) for extent in (block.groups() if block else ()))
    counts = {name: len(re.findall(pattern, ptx)) for name, pattern in _FEATURES.items()}
    return Resources(code.registers, code.frame_bytes, smem_bytes, code.code_bytes, threads, counts)


def kernel_name(ptx: str) -> str:
    """The name of the PTX's (only) entry."""
    entry = re.search(r"\.entry\s+([\w$]+)", ptx)
    if not entry:
        raise CompileError("PTX holds no .entry")
    return entry[1]


def param_sizes(ptx: str) -> list[int]:
    """Bytes of each kernel parameter, in order (PTX ISA, kernel function parameters)."""
    start = ptx.index(".entry")
    head = ptx[start : ptx.index("\n)", start)]
    params = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)[^\[\n,]*(?:\[(\d+)\])?", head)
    return [int(bits) // 8 * int(count or 1) for bits, count in params]


def sass(cubin: bytes) -> str:
    """The machine code as text from nvdisasm (the nvidia-cuda-nvdisasm wheel, CUDA_HOME or PATH).

    Raises:
        CompileError: no nvdisasm was found, or it failed.
    """
    tool = nvdisasm()
    if tool is None:
        raise CompileError("sass needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        result = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompileError(f"nvdisasm failed: {result.stderr.strip()}")
    return result.stdout


def nvdisasm() -> str | None:
    """The path of nvdisasm: in the wheel, in CUDA_HOME or on PATH; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nvidia-cuda-nvdisasm") or []:
            if file.name == "nvdisasm":
                return str(file.locate())
    home = os.environ.get("CUDA_HOME")
    if home and (Path(home) / "bin/nvdisasm").exists():
        return str(Path(home) / "bin/nvdisasm")
    return shutil.which("nvdisasm")


def machine_code(cubin: bytes) -> bytes:
    """The instructions of all kernels of a cubin."""
    sections = _elf_sections(cubin)
    code = (sections[x] for x in sorted(sections) if x.startswith(".text."))
    return b"".join(cubin[at : at + size] for at, size in code)


def _elf_sections(cubin: bytes) -> dict[str, tuple[int, int]]:
    """(offset, size) in the file of each section of a 64-bit ELF."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    strings = headers[names][4]
    return {_text(cubin, strings + header[0]): (header[4], header[5]) for header in headers}


def _text(cubin: bytes, at: int) -> str:
    return cubin[at : cubin.index(b"\0", at)].decode()


def _attributes(cubin: bytes, sections: dict[str, tuple[int, int]]) -> dict[str, dict[int, int]]:
    """The attributes in .nv.info whose payload is (symbol, value), by kernel name."""
    symbols, strings = sections[".symtab"][0], sections[".strtab"][0]
    at, size = sections[".nv.info"]
    end = at + size
    attributes: dict[str, dict[int, int]] = {}
    while at < end:
        form, attribute, payload = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form != _EIFMT_SVAL:
            continue
        if payload == 8:
            symbol, value = struct.unpack_from("<II", cubin, at)
            (name,) = struct.unpack_from("<I", cubin, symbols + _SYMBOL_BYTES * symbol)
            attributes.setdefault(_text(cubin, strings + name), {})[attribute] = value
        at += payload
    return attributes
