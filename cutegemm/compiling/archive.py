# SPDX-License-Identifier: Apache-2.0
"""All cached kernels: listed, cleared, exported to one file and imported from it.

An exported file holds native code, so importing it means trusting who made it, as with a wheel. `import_` checks that
the file is whole, not where it comes from.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cutegemm.compiling import kernel_cache, sealed_files
from cutegemm.errors import InputError, field_error
from cutegemm.files import packed, replace_given, sealed, unpacked, unsealed

_NAME = re.compile(r"[0-9a-f]{40}\.zip")


@dataclass(frozen=True)
class CachedKernel:
    """One cached kernel."""

    name: str  # of its file
    bytes: int  # of its file
    modified: float  # when the file was written, seconds since 1970
    family: str  # of its config; empty if it cannot be used
    what: str  # its config in short; empty if it cannot be used
    trouble: str  # why it cannot be used; empty if it can


@dataclass(frozen=True)
class CacheResult:
    """The result of a `cache` command: its folder, the number of kernels, and for `list` and `clear` the kernels."""

    action: str
    folder: str
    count: int
    bytes: int
    kernels: list[CachedKernel]


def listed() -> list[CachedKernel]:
    """All cached kernels, the newest first."""
    kernels = []
    for path in _entries():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            kernels.append(CachedKernel(path.name, status.st_size, status.st_mtime, *_described(path)))
    return sorted(kernels, key=lambda x: (-x.modified, x.name))


def clear(names: Iterable[str] | None = None) -> int:
    """Delete all cached kernels, or those of the given file names; returns how many."""
    wanted, deleted = None if names is None else set(names), 0
    for path in _entries():
        if wanted is None or path.name in wanted:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                deleted += 1
    return deleted


def export(target: Path) -> int:
    """Write all usable cached kernels to one file, which is replaced as a whole; returns how many.

    Raises:
        InputError: the file cannot be written.
    """
    members = {}
    for path in _entries():
        with contextlib.suppress(sealed_files.UnusableError, OSError):
            data = sealed_files.read(path.parent, path.name)
            if data is not None:
                members[path.name] = data
    replace_given("file", target, sealed(packed(members)))
    return len(members)


def import_(source: Path) -> int:
    """Add the kernels of a file to the cache; returns how many were new. The file is checked before any is written.

    Raises:
        InputError: `export` did not write the file, it was changed, or other users may write the cache's directory.
    """
    try:
        members = unpacked(unsealed(source.read_bytes()))
        if strange := [x for x in members if not _NAME.fullmatch(x)]:
            raise ValueError(f"{strange[0]!r} is not the name of a kernel")
    # a foreign zip raises many kinds
    except Exception as error:
        rule = (
            f"must be a file that `cutegemm cache export` wrote: {getattr(error, 'strerror', None) or error}"
        )
        raise field_error(InputError, "file", str(source), rule) from error
    folder = kernel_cache.directory()
    new = {name: data for name, data in members.items() if not (folder / name).exists()}
    try:
        for name, data in new.items():
            sealed_files.write(folder, name, data)
    except sealed_files.UnusableError as error:
        rule = f"must be a directory that only you may write: {error}"
        raise field_error(InputError, "CUTEGEMM_CACHE_DIR", str(folder), rule) from error
    return len(new)


def _entries() -> list[Path]:
    folder = kernel_cache.directory()
    return sorted(x for x in folder.glob("*.zip") if _NAME.fullmatch(x.name)) if folder.is_dir() else []


def _described(path: Path) -> tuple[str, str, str]:
    """(family, what in words, why it cannot be used)."""
    try:
        data = sealed_files.read(path.parent, path.name)
        config = json.loads(unpacked(data or b"")["entry.json"])["config"]
    except (sealed_files.UnusableError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        return "", "", str(error)
    words = [" x ".join(map(str, config["tile"]))] if "tile" in config else []
    words += [config["operands"][0]["dtype"]] if "operands" in config else []
    words += [f"{config['stages']} stages"] if "stages" in config else []
    return config.get("family", "copy or finish"), ", ".join(words), ""
