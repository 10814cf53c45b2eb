# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels, kept in memory and on disk, so that each is compiled once per machine.

An entry is one zip file holding object, PTX, cubin and a description with digests; it is written beside its
place and renamed into it, so readers see all of it or nothing. Its key covers the config (with the epilogue
graph), the DSL's version, the architecture and the kernel sources.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import platformdirs

from cutegemm import hardware as hw
from cutegemm.compile import Artifact, compile_config
from cutegemm.config import Config, config_from_data
from cutegemm.errors import CompileError
from cutegemm.resources import Resources

FORMAT = 2
DONE = "compiled\n"  # what a compile job says after each kernel
QUIET_SECONDS = 1.0  # a progress bar appears after this long

_MEMORY: dict[Config, Artifact] = {}
_LOCK = threading.RLock()


def directory() -> Path:
    """Where entries lie: $CUTEGEMM_CACHE_DIR, or the user's cache directory."""
    return Path(os.environ.get("CUTEGEMM_CACHE_DIR") or platformdirs.user_cache_dir("cutegemm")) / "kernels"


@functools.cache
def sources_digest() -> str:
    """SHA-256 over every source file a kernel's code depends on."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    others = ("config.py", "dtypes.py", "epilogue/graph.py", "hardware.py", "budget.py", "layouts/sm90.py")
    for path in sorted([*root.glob("kernels/*.py"), *(root / name for name in others)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def dsl_version() -> str:
    """Version of the installed CuTe DSL."""
    return importlib.metadata.version("nvidia-cutlass-dsl")


def key(config: Config) -> str:
    """The name of a config's entry: 40 hexadecimal digits."""
    parts = [FORMAT, config.to_data(), dsl_version(), hw.ARCH, sources_digest()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def artifact(config: Config) -> Artifact:
    """The compiled kernel of a config: from memory, from disk, or compiled now and stored.

    Raises:
        CompileError: the kernel does not compile.
    """
    found = _MEMORY.get(config)
    if found is None:
        with _LOCK:
            found = _MEMORY.get(config) or _read(config)
            if found is None:
                found = compile_config(config)
                _write(config, found)
            _MEMORY[config] = found
    return found


def ensure(configs: Iterable[Config]) -> None:
    """Have every config compiled, missing ones in parallel subprocesses with a progress bar past a second.

    Raises:
        CompileError: a kernel does not compile.
    """
    missing = [c for c in dict.fromkeys(configs) if c not in _MEMORY and not _path(c).exists()]
    workers = min(len(missing), os.cpu_count() or 1)
    if workers > 1:
        _compile_parallel(missing, workers)
    for config in dict.fromkeys(configs):
        artifact(config)


def _compile_parallel(configs: list[Config], workers: int) -> None:
    """Compile into the disk cache in fresh interpreters, each taking its share: the DSL is not thread-safe."""
    from rich.progress import Progress

    start = time.monotonic()
    with (
        concurrent.futures.ThreadPoolExecutor(workers) as pool,
        Progress(transient=True, disable=None) as bar,
    ):
        task = bar.add_task("compiling kernels", total=len(configs), visible=False)

        def advance() -> None:
            bar.update(task, advance=1, visible=time.monotonic() - start > QUIET_SECONDS)

        jobs = [pool.submit(_compile_elsewhere, configs[i::workers], advance) for i in range(workers)]
        for job in concurrent.futures.as_completed(jobs):
            job.result()


def _compile_elsewhere(configs: list[Config], advance: Callable[[], None]) -> None:
    """Compile configs in one subprocess, which says a line after each; `advance` is called for every line."""
    paths = os.pathsep.join(p for p in sys.path if p)
    with subprocess.Popen(
        [sys.executable, "-m", "cutegemm.compile_job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    ) as process:
        process.stdin.write(json.dumps([config.to_data() for config in configs]))
        process.stdin.close()
        said = []
        for line in process.stdout:
            said.append(line)
            if line == DONE:
                advance()
    if process.returncode:
        raise CompileError(f"a kernel does not compile: {''.join(said).strip()[-2000:]}")


def _path(config: Config) -> Path:
    return directory() / f"{key(config)}.zip"


def _write(config: Config, made: Artifact) -> None:
    """Store an entry atomically; a directory that cannot be written is reported, not fatal."""
    members = {"kernel.o": made.obj, "kernel.ptx": made.ptx.encode(), "kernel.cubin": made.cubin}
    entry = {
        "format": FORMAT,
        "config": config.to_data(),
        "resources": dataclasses.asdict(made.resources),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in (members | {"entry.json": json.dumps(entry).encode()}).items():
            file.writestr(name, data)
    path = _path(config)
    part = path.with_name(f".{path.stem}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(buffer.getvalue())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        warnings.warn(f"compiled kernel not kept: {error}", RuntimeWarning, stacklevel=3)


def _read(config: Config) -> Artifact | None:
    """The entry on disk; None, with a warning, where it is truncated or not what its name says."""
    path = _path(config)
    try:
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in ("kernel.o", "kernel.ptx", "kernel.cubin")}
            entry = json.loads(file.read("entry.json"))
        for name, data in members.items():
            if hashlib.sha256(data).hexdigest() != entry["sha256"][name]:
                raise ValueError(f"{name} differs from its digest")
        if config_from_data(entry["config"]) != config:
            raise ValueError("it describes another kernel")
        measured = Resources(**entry["resources"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        warnings.warn(
            f"cache entry {path} is unusable and will be rebuilt: {error}", RuntimeWarning, stacklevel=3
        )
        return None
    return Artifact(members["kernel.o"], members["kernel.ptx"].decode(), members["kernel.cubin"], measured)
