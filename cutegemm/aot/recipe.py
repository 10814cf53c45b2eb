# SPDX-License-Identifier: Apache-2.0
"""A plan's launches as plain data: parameter bytes, and the places where each call writes its addresses and numbers.

The host code of a compiled kernel turns a call's arguments into kernel parameters, including tensor maps. For one
problem everything but addresses and scalars is constant. `record` runs the host code several times with CUDA replaced,
each time with other addresses and numbers. Bytes that differ between the recordings are patches; the others are the
template. A last recording with new addresses and numbers must equal what the patches predict.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cutegemm.compiling import kernel_cache
from cutegemm.compiling.loader import RecordedLaunch
from cutegemm.compiling.resources import kernel_name
from cutegemm.config import Config
from cutegemm.errors import CompileError
from cutegemm.launch_layout import COUNTERS
from cutegemm.plans.kernel_plan import KernelPlan, launch_arguments

WORKSPACE = "run.workspace"  # among the addresses of a launch; tensor names have no dot
TENSOR_MAP_BYTES = 128
PARAM_ALIGN = 64  # bytes: of a tensor map's address (CUDA driver API, CUtensorMap)
# the hardware reads 64 of a tensor map's 128 bytes; the host code leaves the others undefined
TENSOR_MAP_READ = 64
# kinds of patches: the value that is written
ADDRESS, CHUNK, FLOAT, INTEGER = "address", "chunk", "float32", "int32"
# a tensor map's base address is a multiple of 16 bytes
CHUNK_BYTES = 16
# recordings: two to find the patches, one to verify them
RECORDINGS = 3
# first address of a recording's tensors, their distance, and the alignment of workspace and counters, bytes
BASE, SPACING, ALIGNED = 1 << 46, 1 << 41, 1024
# PTX ISA, ld: a load of a kernel parameter by name; a name anywhere else takes its address
_PARAM_LOAD = re.compile(r"ld\.param(?:\.v(\d))?\.[a-z](\d+)\s[^;]*\[[\w$]+_param_(\d+)(?:\+(\d+))?\]")
_PARAM_NAME = re.compile(r"_param_(\d+)\b")
_ADDRESS_FORM, _NUMBER_FORMS = struct.Struct("<Q"), {FLOAT: struct.Struct("<f"), INTEGER: struct.Struct("<i")}


@dataclass(frozen=True)
class ParameterPatch:
    """One place in a launch's parameters that each call fills in."""

    source: str  # the tensor, workspace, counters or number
    kind: str  # "address", "chunk" (the address rounded down to 16 bytes), "float32" or "int32"
    param: int  # index of the kernel parameter
    offset: int  # in it, bytes
    addend: int = 0  # bytes from the source's address to the one that is written

    @property
    def size(self) -> int:
        """Bytes that are written."""
        return 4 if self.kind in _NUMBER_FORMS else _ADDRESS_FORM.size

    def value(self, addresses: Mapping[str, int], numbers: Mapping[str, float]) -> bytes:
        """The bytes that a call writes."""
        if self.kind in _NUMBER_FORMS:
            return _packed(self.kind, numbers[self.source])
        place = addresses[self.source] + self.addend
        return _ADDRESS_FORM.pack(place & -CHUNK_BYTES if self.kind == CHUNK else place)


def _packed(kind: str, value: float) -> bytes:
    """A number as a kernel reads it; one beyond fp32 becomes infinite, as in a C cast."""
    try:
        return _NUMBER_FORMS[kind].pack(value)
    except OverflowError:
        return _NUMBER_FORMS[kind].pack(math.copysign(math.inf, value))


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a recipe. Its parameters are in one block, each aligned for a tensor map."""

    kernel: int  # index among the artefact's kernels
    grid: tuple[int, int, int]  # CTAs along (x, y, z)
    block: tuple[int, int, int]  # threads
    cluster: tuple[int, int, int]  # CTAs per cluster
    smem: int  # dynamic shared memory, bytes
    pdl: bool  # programmatic dependent launch: whether it may start before the previous launch ends
    params: tuple[bytes, ...]  # the bytes of each kernel parameter, with zeros in place of patches
    patches: tuple[ParameterPatch, ...]  # that a call fills in

    def __post_init__(self) -> None:
        for x in self.patches:
            # a file must not cause writes outside of a parameter
            if not (0 <= x.param < len(self.params) and 0 <= x.offset <= len(self.params[x.param]) - x.size):
                raise ValueError(f"patch {x} is outside its parameter")

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each parameter in the block, and the block's size at the end; bytes."""
        sizes = (-(-len(x) // PARAM_ALIGN) * PARAM_ALIGN for x in self.params)
        return tuple(itertools.accumulate(sizes, initial=0))

    def filled(self, addresses: Mapping[str, int], numbers: Mapping[str, float]) -> tuple[bytes, ...]:
        """The parameters of one call."""
        params = [bytearray(x) for x in self.params]
        for patch in self.patches:
            value = patch.value(addresses, numbers)
            params[patch.param][patch.offset : patch.offset + len(value)] = value
        return tuple(bytes(x) for x in params)


@dataclass(frozen=True)
class KernelBinary:
    """A kernel of an artefact: its name, cubin and PTX."""

    name: str
    cubin: bytes
    ptx: str


class _Values(NamedTuple):
    """The addresses and numbers of one recording, by name."""

    addresses: dict[str, int]
    numbers: dict[str, float]


def record(
    plan: KernelPlan,
    tensors: Mapping[str, int],
    numbers: Mapping[str, str],
    kernels: list[KernelBinary],
) -> tuple[KernelLaunch, ...]:
    """The launches of a plan as data; adds their kernels to `kernels`.

    Args:
        plan: of one problem; missing kernels are compiled.
        tensors: alignment of each tensor's address by name, bytes.
        numbers: "scalar" or "integer" for each number passed by value, by name.
        kernels: of the artefact.

    Raises:
        CompileError: a kernel does not compile, or a parameter is not the sum of an address and a constant.
    """
    versions = [_values(i, tensors, numbers) for i in range(RECORDINGS)]
    recordings = [list(_recorded(plan, x)) for x in versions]
    steps = []
    for launches in zip(*recordings, strict=True):
        made = kernel_cache.artifact(launches[0][0])
        binary = KernelBinary(kernel_name(made.ptx), made.cubin, made.ptx)
        if binary not in kernels:
            kernels.append(binary)
        steps.append(_template(kernels.index(binary), made.ptx, [x[1] for x in launches], versions, numbers))
    return tuple(steps)


def _values(index: int, tensors: Mapping[str, int], numbers: Mapping[str, str]) -> _Values:
    """Addresses and numbers of a recording; between recordings every source moves by another distance."""
    aligns = {**tensors, COUNTERS: ALIGNED, WORKSPACE: ALIGNED}
    addresses = {}
    for i, (name, align) in enumerate(aligns.items(), 1):
        # far apart; in the last recording with the least alignment that a call may have, 16 bytes for workspace
        moved = index * (i * SPACING + i * ALIGNED)
        unaligned = min(align, CHUNK_BYTES) if index == RECORDINGS - 1 else 0
        addresses[name] = BASE + i * SPACING + moved + unaligned
    passed: dict[str, float] = {}
    for i, (name, kind) in enumerate(numbers.items(), 1):
        # every byte of the number differs between recordings
        bits = sum((0x11 + 0x20 * index + i) << 8 * x for x in range(4))
        passed[name] = bits if kind == "integer" else _NUMBER_FORMS[FLOAT].unpack(struct.pack("<I", bits))[0]
    return _Values(addresses, passed)


def _recorded(plan: KernelPlan, values: _Values) -> Iterator[tuple[Config, RecordedLaunch]]:
    """(config, launch) of every launch that the host code makes with these values."""
    workspace = values.addresses[WORKSPACE]
    for config, arguments in launch_arguments(plan, values.addresses, workspace, values.numbers, 0):
        for launch in kernel_cache.launches(config, arguments):
            yield config, launch


def _template(
    kernel: int,
    ptx: str,
    launches: Sequence[RecordedLaunch],
    versions: Sequence[_Values],
    numbers: Mapping[str, str],
) -> KernelLaunch:
    """One launch's template and patches, verified against the last recording."""
    cleaned = [_cleaned(ptx, x.params) for x in launches]
    first, second, last = cleaned
    patches = tuple(
        patch for i, (p, q) in enumerate(zip(first, second)) for patch in _patches(i, p, q, versions, numbers)
    )
    params = [bytearray(x) for x in first]
    for patch in patches:
        params[patch.param][patch.offset : patch.offset + patch.size] = bytes(patch.size)
    one = launches[0]
    template = KernelLaunch(
        kernel, one.grid, one.block, one.cluster, one.smem, one.pdl, tuple(bytes(x) for x in params), patches
    )
    shapes = {(x.grid, x.block, x.cluster, x.smem, x.pdl) for x in launches}
    if len(shapes) > 1 or template.filled(*versions[-1]) != last:
        raise CompileError("its launch parameters depend on addresses in a way that patches cannot express")
    return template


def _patches(
    param: int, first: bytes, second: bytes, versions: Sequence[_Values], numbers: Mapping[str, str]
) -> Iterator[ParameterPatch]:
    """The places of one parameter that differ between two recordings."""
    offset = 0
    while offset < len(first):
        if first[offset : offset + 4] == second[offset : offset + 4]:
            offset += 4
            continue
        patch = _patch(param, offset, (first, second), versions, numbers)
        if patch is None:
            raise CompileError(
                f"byte {offset} of kernel parameter {param} depends on addresses or numbers in an unknown way"
            )
        yield patch
        offset += patch.size


def _patch(
    param: int,
    offset: int,
    pair: tuple[bytes, bytes],
    versions: Sequence[_Values],
    numbers: Mapping[str, str],
) -> ParameterPatch | None:
    """The patch at a place: the address that moved as far as the value did, or the number at this place."""
    old, new = versions[:2]
    if offset + _ADDRESS_FORM.size <= len(pair[0]):
        p, q = (_ADDRESS_FORM.unpack_from(x, offset)[0] for x in pair)
        for name, place in old.addresses.items():
            if q - p == new.addresses[name] - place:
                # the base address in a tensor map is rounded down to 16 bytes; a pointer is not
                kind = CHUNK if len(pair[0]) == TENSOR_MAP_BYTES and offset == 0 else ADDRESS
                return ParameterPatch(name, kind, param, offset, p - place)
    for name, of in numbers.items():
        kind = INTEGER if of == "integer" else FLOAT
        passed = [_NUMBER_FORMS[kind].pack(x.numbers[name]) for x in (old, new)]
        if [x[offset : offset + 4] for x in pair] == passed:
            return ParameterPatch(name, kind, param, offset)
    return None


def _cleaned(ptx: str, params: Sequence[bytes]) -> tuple[bytes, ...]:
    """Parameters with zeros in bytes that the kernel does not read, because host code leaves padding undefined."""
    read, whole = _bytes_read(ptx)

    def cleaned(i: int, x: bytes) -> bytes:
        if len(x) == TENSOR_MAP_BYTES:
            return x[:TENSOR_MAP_READ] + bytes(len(x) - TENSOR_MAP_READ)
        return x if i in whole else bytes(byte if (i, at) in read else 0 for at, byte in enumerate(x))

    return tuple(cleaned(i, x) for i, x in enumerate(params))


@functools.lru_cache(64)
def _bytes_read(ptx: str) -> tuple[frozenset[tuple[int, int]], frozenset[int]]:
    """(parameter, byte) that `ld.param` reads by name (PTX ISA, ld), and the parameters read by address."""
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    read: set[tuple[int, int]] = set()
    for vector, bits, index, offset in _PARAM_LOAD.findall(body):
        start, size = int(offset or 0), int(vector or 1) * int(bits) // 8
        read |= {(int(index), at) for at in range(start, start + size)}
    return frozenset(read), frozenset(map(int, _PARAM_NAME.findall(_PARAM_LOAD.sub("", body))))
