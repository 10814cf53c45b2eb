# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels, kept in memory and on disk, so that each is compiled once per machine.

An entry is one sealed file (`sealed_files`): a zip of object, PTX, cubin and a description. Its name covers the config
(with the epilogue graph), the DSL's version, the architecture, the host's machine and the kernel sources, and
its seal covers its name, so an object is only ever used for the config and sources that it was compiled from.
What is not as it was written is compiled again, with one warning. A kernel that several processes want is
compiled by one of them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cutegemm.arch import sm90 as hw
from cutegemm.compiling import folders, jobs, sealed_files, sources
from cutegemm.compiling.compiler import Artifact, compile_config, record_launches
from cutegemm.compiling.loader import Launch
from cutegemm.compiling.resources import Resources, SpillWarning
from cutegemm.config import Config
from cutegemm.files import packed, unpacked

FORMAT = 3
# kernels that compile in the time that a process takes to start
START = 3
PACKAGE = Path(__file__).resolve().parents[1]

_MEMORY: dict[Config, Artifact] = {}
_LOCK = threading.RLock()


def directory() -> Path:
    """Where entries lie: $CUTEGEMM_CACHE_DIR, or the user's cache directory."""
    return folders.cache_folder() / "kernels"


@functools.cache
def sources_digest() -> str:
    """SHA-256 over every source file a kernel's code depends on."""
    digest = hashlib.sha256()
    kernels = [
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.glob("kernels/**/*.py")
    ]
    for path in sources.behind(PACKAGE, kernels):
        name = path.relative_to(PACKAGE).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def dsl_version() -> str:
    """Version of the installed CuTe DSL; without one nothing in the cache has the key that is asked for."""
    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def key(config: Config) -> str:
    """The name of a config's entry: 40 hexadecimal digits."""
    parts = [FORMAT, config.to_data(), dsl_version(), hw.ARCH, platform.machine(), sources_digest()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def entry(config: Config) -> Path:
    """The file that holds a config's kernel once it is compiled."""
    return directory() / f"{key(config)}.zip"


def artifact(config: Config, *, told: bool = True) -> Artifact:
    """The compiled kernel of a config: from memory, from disk, or compiled now and stored.

    A kernel whose threads spill is warned of once a process, unless not `told`.

    Raises:
        CompileError: the kernel does not compile.
    """
    found = _MEMORY.get(config)
    if found is None:
        with _LOCK:
            new = config not in _MEMORY
            found = _MEMORY.get(config) or _stored_or_made(config)
            _MEMORY[config] = found
        if new and told and found.resources.spills and hasattr(config, "tile"):
            spilled = f"{found.resources.frame_bytes} B spilled per thread"
            text = f"{config.family} kernel: {spilled}; a smaller tile may be faster"
            warnings.warn(text, SpillWarning, stacklevel=3)
    return found


def stored(config: Config) -> Artifact | None:
    """The compiled kernel of a config if there is one, from memory or from disk; nothing is compiled."""
    return _MEMORY.get(config) or _read(entry(config))[0]


def launches(config: Config, arguments: tuple[Any, ...]) -> list[Launch]:
    """What the host code of a config launches with these arguments, CUDA replaced.

    Raises:
        CompileError: the kernel does not compile.
    """
    made = artifact(config)
    return record_launches(made.obj, made.ptx, arguments)


def ensure(configs: Iterable[Config], *, told: bool = True) -> None:
    """Have every config compiled, six or more missing ones in parallel; `told` as for `artifact`.

    Raises:
        CompileError: a kernel does not compile.
    """
    wanted = list(dict.fromkeys(configs))
    missing = [c for c in wanted if c not in _MEMORY and not entry(c).exists()]
    workers = min(len(missing) // START, os.cpu_count() or 1)
    if workers > 1:
        jobs.compile_parallel(missing, workers)
    for config in wanted:
        artifact(config, told=told)


def _stored_or_made(config: Config) -> Artifact:
    """The entry on disk, or a new one where there is none or it cannot be used; one warning tells of trouble."""
    path = entry(config)
    found, _ = _read(path)
    if found is not None:
        return found
    with sealed_files.lock(path.parent, path.stem):
        # another process may have compiled it meanwhile
        found, unusable = _read(path)
        if found is not None:
            return found
        made = compile_config(config)
        unkept = _write(path, config, made)
    trouble = []
    if unusable is not None:
        trouble.append(f"cache entry {path} is unusable and will be rebuilt: {unusable}")
    if unkept is not None:
        trouble.append(f"compiled kernel not kept: {unkept}")
    if trouble:
        warnings.warn("; ".join(trouble), RuntimeWarning, stacklevel=4)
    return made


def _read(path: Path) -> tuple[Artifact | None, str | None]:
    """The kernel of an entry, or why there is none to use; neither where there is no entry."""
    try:
        data = sealed_files.read(path.parent, path.name)
        return (None, None) if data is None else (_unpacked(data), None)
    except (sealed_files.UnusableError, OSError) as error:
        return None, str(error)
    except Exception as error:
        # sealed, but not as this version writes it
        return None, f"{type(error).__name__}: {error}"


def _write(path: Path, config: Config, made: Artifact) -> str | None:
    """Store an entry; why not, where it cannot be stored."""
    try:
        sealed_files.write(path.parent, path.name, _packed(config, made))
    except (sealed_files.UnusableError, OSError) as error:
        return str(error)
    return None


def _packed(config: Config, made: Artifact) -> bytes:
    """A zip of a kernel's parts and what they are."""
    description = {
        "format": FORMAT,
        "config": config.to_data(),
        "resources": dataclasses.asdict(made.resources),
    }
    return packed(
        {
            "kernel.o": made.obj,
            "kernel.ptx": made.ptx.encode(),
            "kernel.cubin": made.cubin,
            "entry.json": json.dumps(description).encode(),
        }
    )


def _unpacked(data: bytes) -> Artifact:
    members = unpacked(io.BytesIO(data))
    obj, ptx, cubin = (members[f"kernel.{part}"] for part in ("o", "ptx", "cubin"))
    description = json.loads(members["entry.json"])
    return Artifact(obj, ptx.decode(), cubin, Resources(**description["resources"]))
