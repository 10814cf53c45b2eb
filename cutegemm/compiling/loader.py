# SPDX-License-Identifier: Apache-2.0
"""Loads a compiled kernel's object, to launch it or to record its launches with every CUDA call replaced.

An object that the DSL exports holds host code, the cubin and one TVM-FFI entry point. LLVM's MCJIT (llvmlite) links it
in milliseconds, without a compiler, a linker or the DSL. Its CUDA calls resolve to the DSL's runtime library, or to
Python for `recorder`. For that, symbol names in the object are patched to names of the same length, so both kinds can
coexist in one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import itertools
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.errors import CompileError, field_error

# Name given to the exported function.
ENTRY = "gemm"
_LOCK = threading.Lock()

# CUDA calls of the host code (undocumented wrappers in the DSL's runtime, seen in its objects) -> recorder's name
_REPLACED = {
    name: name.replace("cuda", "reco").replace("_cuK", "_reK").replace("CuteDSLRT", "RecoDSLRT")
    for name in (
        "_cudaLaunchKernelEx", "_cudaLibraryLoadData", "_cudaLibraryGetKernel", "_cudaGetDevice",
        "_cudaDeviceGetAttribute", "_cuKernelGetAttribute", "_cudaFuncSetAttribute",
        "_cudaKernelSetAttributeForDevice", "cuda_dialect_init_library_once",
        "cuda_dialect_unload_library_once", "CuteDSLRT_TVMFFISetRaisedCudaError",
    )
}  # fmt: skip


@dataclass(frozen=True)
class RecordedLaunch:
    """One kernel launch as the host code requested it."""

    kernel: str  # its name in the PTX
    grid: tuple[int, int, int]  # CTAs along (x, y, z)
    block: tuple[int, int, int]  # threads
    cluster: tuple[int, int, int]  # CTAs per cluster
    smem: int  # dynamic shared memory, bytes
    params: tuple[bytes, ...]  # the bytes of every kernel parameter, including tensor maps, in PTX order
    pdl: bool = False  # programmatic dependent launch: whether it may start before the previous launch ends
    clustered: bool = False  # whether it is a launch in clusters, which may be of one CTA


def load(obj: bytes) -> Callable[..., None]:
    """Link an object for launching on the GPU; the result is called with the kernel's host arguments.

    Raises:
        CompileError: the object does not link, or the DSL's runtime library is missing.
    """
    _load_runtime()
    return _link(obj)


def recorder(obj: bytes, kernel: str, param_sizes: list[int]) -> Callable[..., list[RecordedLaunch]]:
    """Link an object with CUDA replaced: calling the result runs the host code and returns its launches.

    Args:
        obj: the object's bytes.
        kernel: name given to the launches (an object holds one kernel).
        param_sizes: bytes of each kernel parameter (`resources.param_sizes`).
    """
    with _LOCK:
        # A second definition would replace the symbols, and its callbacks would be freed: the cache keeps the first.
        _define_recorder_symbols()
    patched = obj
    for name, other in _REPLACED.items():
        # A string table may store a name as the tail of a longer one, so only the end is matched.
        patched = patched.replace(name.encode() + b"\0", other.encode() + b"\0")
    function = _link(patched)

    def record(*args: Any) -> list[RecordedLaunch]:
        with _LOCK:
            _RECORDING.kernel, _RECORDING.sizes, _RECORDING.launches = kernel, param_sizes, []
            function(*args)
            return _RECORDING.launches

    return record


@functools.cache
def _load_runtime() -> ctypes.CDLL:
    for wheel in ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(wheel) or []:
                if file.name == "libcute_dsl_runtime.so" and "stubs" not in file.parts:
                    return ctypes.CDLL(str(file.locate()), ctypes.RTLD_GLOBAL)
    raise CompileError("libcute_dsl_runtime.so not found: nvidia-cutlass-dsl is not completely installed")


@functools.cache
def _target_machine() -> Any:
    import llvmlite.binding as llvm
    import tvm_ffi

    ctypes.CDLL(str(Path(tvm_ffi.libinfo.find_libtvm_ffi())), ctypes.RTLD_GLOBAL)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


_NAMES = itertools.count()


def _check_object(obj: bytes) -> None:
    """Refuse anything but a whole relocatable object, because linking it would crash the process.

    Source: ELF-64 Object File Format, version 1.5: e_ident, e_type, e_shoff, e_shentsize, e_shnum.
    """
    header = struct.Struct("<4sBB10xHH20xQ10xHHH")
    if len(obj) >= header.size:
        magic, bits, order, kind, _, table, size, count, _ = header.unpack_from(obj)
        if (magic, bits, order, kind) == (b"\x7fELF", 2, 1, 1) and table + size * count <= len(obj):
            return
    raise field_error(CompileError, "obj", f"{len(obj)} bytes", "must be a whole ELF-64 relocatable object")


def _link(obj: bytes) -> Callable[..., None]:
    _check_object(obj)
    import llvmlite.binding as llvm
    import tvm_ffi

    with _LOCK:
        target = _target_machine()
        module = llvm.parse_assembly("")
        module.triple = llvm.get_default_triple()
        machine = target.create_target_machine(codemodel="jitdefault", reloc="pic")
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(obj))
        engine.finalize_object()
        address = engine.get_function_address(f"__tvm_ffi_{ENTRY}")
    if not address:
        raise CompileError(f"object has no entry point __tvm_ffi_{ENTRY}: a foreign or truncated file")
    function: Callable[..., None] = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=engine)
    return function


class _LaunchConfig(ctypes.Structure):
    """cudaLaunchConfig_t (CUDA runtime API)."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
    ]


_ATTRIBUTE_BYTES = 72  # sizeof(cudaLaunchAttribute): an id, padding, and a 64-byte value
_CLUSTER_DIMENSION = 4  # cudaLaunchAttributeClusterDimension
_PROGRAMMATIC = 6  # cudaLaunchAttributeProgrammaticStreamSerialization


class _Recording:
    """The launches of the call in progress; guarded by _LOCK."""

    kernel = ""
    sizes: list[int] = []
    launches: list[RecordedLaunch] = []


_RECORDING = _Recording()


def _record_launch(config: int, _kernel: int, args: int) -> int:
    launch = ctypes.cast(config, ctypes.POINTER(_LaunchConfig))[0]
    pointers = ctypes.cast(args, ctypes.POINTER(ctypes.c_void_p))
    cluster: tuple[int, ...] = (1, 1, 1)
    pdl = clustered = False
    for i in range(launch.count):
        raw = ctypes.string_at(launch.attrs + _ATTRIBUTE_BYTES * i, _ATTRIBUTE_BYTES)
        kind = int.from_bytes(raw[:4], "little")
        pdl |= kind == _PROGRAMMATIC and any(raw[8:12])
        if kind == _CLUSTER_DIMENSION:
            clustered = True
            cluster = tuple(int.from_bytes(raw[8 + 4 * j : 12 + 4 * j], "little") for j in range(3))
    params = tuple(ctypes.string_at(pointers[i], size) for i, size in enumerate(_RECORDING.sizes))
    grid, block = _triple(launch.grid), _triple(launch.block)
    record = RecordedLaunch(
        _RECORDING.kernel, grid, block, _triple(cluster), launch.smem, params, pdl, clustered
    )
    _RECORDING.launches.append(record)
    return 0


def _triple(extents: Iterable[int]) -> tuple[int, int, int]:
    x, y, z = extents
    return x, y, z


def _write_pointer(target: int, *_: Any) -> int:
    ctypes.cast(target, ctypes.POINTER(ctypes.c_void_p))[0] = 1  # any non-null handle
    return 0


def _write_zero(target: int, *_: Any) -> int:
    ctypes.cast(target, ctypes.POINTER(ctypes.c_int))[0] = 0
    return 0


@functools.cache
def _define_recorder_symbols() -> list[Any]:
    """Register the recorder's callbacks under the patched names; the cached result keeps them alive."""
    import llvmlite.binding as llvm

    ptr, num = ctypes.c_void_p, ctypes.c_int
    table: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
        "_cudaLaunchKernelEx": (_record_launch, (ptr, ptr, ptr)),
        "_cudaLibraryLoadData": (_write_pointer, (ptr, ptr, ptr, ptr, num, ptr, ptr, num)),
        "_cudaLibraryGetKernel": (_write_pointer, (ptr, ptr, ptr)),
        "_cudaGetDevice": (_write_zero, (ptr,)),
        "_cudaDeviceGetAttribute": (_write_zero, (ptr, num, num)),
        "_cuKernelGetAttribute": (_write_zero, (ptr, num, ptr, num)),
        "_cudaFuncSetAttribute": (lambda *_: 0, (ptr, num, num)),
        "_cudaKernelSetAttributeForDevice": (lambda *_: 0, (ptr, num, num, num)),
        "cuda_dialect_init_library_once": (_write_pointer, (ptr, ptr, ptr, ptr)),
        "cuda_dialect_unload_library_once": (lambda *_: 0, (ptr,)),
        "CuteDSLRT_TVMFFISetRaisedCudaError": (lambda *_: 0, (num,)),
    }
    callbacks = []
    for name, (function, types) in table.items():
        callback = ctypes.CFUNCTYPE(num, *types)(function)
        llvm.add_symbol(_REPLACED[name], ctypes.cast(callback, ptr).value)
        callbacks.append(callback)
    return callbacks
