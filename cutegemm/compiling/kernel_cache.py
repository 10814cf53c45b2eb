# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels, cached in memory and on disk, so each is compiled once per machine.

An entry is one file (`sealed_files`): a zip of object, PTX, cubin and a description. Its name is a hash of the config
(with the epilogue graph), the DSL's version, the architecture, the host's machine and the kernel sources. Its checksum
covers the name, so an object is used only for the config and sources that it was compiled from. A changed file is
compiled again, with one warning. If several processes need a kernel, one of them compiles it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
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
from cutegemm.compiling.loader import RecordedLaunch
from cutegemm.compiling.resources import Resources, SpillWarning
from cutegemm.config import Config
from cutegemm.files import packed, unpacked

FORMAT = 4
# kernels that compile in the time in which a process starts
START = 3
PACKAGE = Path(__file__).resolve().parents[1]

_MEMORY: dict[Config, Artifact] = {}
_LOCK = threading.RLock()


def directory() -> Path:
    """The directory of entries, in $CUTEGEMM_CACHE_DIR or the user's cache directory."""
    return folders.cache_folder() / "kernels"


@functools.cache
def sources_digest() -> str:
    """SHA-256 of every source file that a kernel's code depends on."""
    digest = hashlib.sha256()
    kernels = [
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.glob("kernels/**/*.py")
    ]
    for path in sources.behind(PACKAGE, kernels):
        name = path.relative_to(PACKAGE).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def version(distribution: str = "nvidia-cutlass-dsl") -> str:
    """Version of an installed distribution, by default the CuTe DSL; "none" if it is missing, as no entry has it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def key(config: Config) -> str:
    """The name of a config's entry: 40 hexadecimal digits."""
    parts = [FORMAT, config.to_data(), version(), hw.ARCH, platform.machine(), sources_digest()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def entry(config: Config) -> Path:
    """The file of a config's kernel."""
    return directory() / f"{key(config)}.zip"


def artifact(config: Config, *, warn: bool = True) -> Artifact:
    """The compiled kernel of a config: from memory, from disk, or compiled now and stored.

    With `warn`, a kernel whose threads spill causes one warning per process.

    Raises:
        CompileError: the kernel does not compile.
    """
    made = _MEMORY.get(config)
    if made is None:
        with _LOCK:
            new = config not in _MEMORY
            made = _MEMORY.get(config) or _stored_or_made(config)
            _MEMORY[config] = made
        if new and warn and made.resources.spills and hasattr(config, "tile"):
            spilled = f"{made.resources.frame_bytes} B spilled per thread"
            text = f"{config.family} kernel: {spilled}; a smaller tile may be faster"
            warnings.warn(text, SpillWarning, stacklevel=3)
    return made


def stored(config: Config) -> Artifact | None:
    """The compiled kernel of a config from memory or disk; None if it is not compiled."""
    return _MEMORY.get(config) or _read(entry(config))[0]


def launches(config: Config, arguments: tuple[Any, ...]) -> list[RecordedLaunch]:
    """The launches that the host code of a config makes with these arguments, with CUDA replaced.

    Raises:
        CompileError: the kernel does not compile.
    """
    made = artifact(config)
    return record_launches(made.obj, made.ptx, arguments)


def ensure(configs: Iterable[Config], *, warn: bool = True) -> None:
    """Compile every config, six or more missing ones in parallel; `warn` as for `artifact`.

    Raises:
        CompileError: a kernel does not compile.
    """
    wanted = list(dict.fromkeys(configs))
    missing = [c for c in wanted if c not in _MEMORY and not entry(c).exists()]
    workers = min(len(missing) // START, os.cpu_count() or 1)
    if workers > 1:
        jobs.compile_parallel(missing, workers)
    for config in wanted:
        artifact(config, warn=warn)


def _stored_or_made(config: Config) -> Artifact:
    """The entry on disk, or a new one if there is none or it is unusable; one warning names all problems."""
    path = entry(config)
    stored, _ = _read(path)
    if stored is not None:
        return stored
    with sealed_files.lock(path.parent, path.stem):
        # another process may have compiled it meanwhile
        stored, unusable = _read(path)
        if stored is not None:
            return stored
        made = compile_config(config)
        unkept = _write(path, config, made)
    trouble = []
    if unusable is not None:
        trouble.append(f"cache entry {path} is unusable and will be rebuilt: {unusable}")
    if unkept is not None:
        trouble.append(f"compiled kernel not cached: {unkept}")
    if trouble:
        warnings.warn("; ".join(trouble), RuntimeWarning, stacklevel=4)
    return made


def _read(path: Path) -> tuple[Artifact | None, str | None]:
    """(kernel, None) of an entry, (None, reason) if it is unusable, (None, None) if there is no entry."""
    try:
        data = sealed_files.read(path.parent, path.name)
        return (None, None) if data is None else (_unpacked(data), None)
    except (sealed_files.UnusableError, OSError) as error:
        return None, str(error)
    except Exception as error:
        # the checksum is right, but another version wrote it
        return None, f"{type(error).__name__}: {error}"


def _write(path: Path, config: Config, made: Artifact) -> str | None:
    """Store an entry; returns the reason if that fails, else None."""
    try:
        sealed_files.write(path.parent, path.name, _packed(config, made))
    except (sealed_files.UnusableError, OSError) as error:
        return str(error)
    return None


def _packed(config: Config, made: Artifact) -> bytes:
    """A zip of a kernel's object, PTX, cubin and description."""
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
    members = unpacked(data)
    obj, ptx, cubin = (members[f"kernel.{part}"] for part in ("o", "ptx", "cubin"))
    description = json.loads(members["entry.json"])
    return Artifact(obj, ptx.decode(), cubin, Resources(**description["resources"]))
