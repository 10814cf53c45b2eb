# SPDX-License-Identifier: Apache-2.0
"""The kept kernels as a whole: listed, cleared, written to one file and taken from one.

A file holds native code. Whoever takes one in trusts whoever made it, as with a wheel: `import_` checks that it is
whole, not where it comes from. Entries are sealed anew under this directory's secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cutegemm.compiling import kernel_cache, sealed_files
from cutegemm.errors import InputError, field_error
from cutegemm.files import packed, replace_given, unpacked

FORMAT = 1
MANIFEST = "cutegemm-kernels.json"
_NAME = re.compile(r"[0-9a-f]{40}\.zip")


@dataclass(frozen=True)
class Kept:
    """One kept kernel.

    Attributes:
        name: of its file; bytes: of it; modified: when it was written, seconds since 1970.
        family, what: of its config; empty where it cannot be used.
        trouble: why it cannot be used; empty where it can.
    """

    name: str
    bytes: int
    modified: float
    family: str
    what: str
    trouble: str


@dataclass(frozen=True)
class CacheDone:
    """What a command of `cache` did: in which folder, to how many kernels; and, of `list` and `clear`, which."""

    action: str
    folder: str
    count: int
    bytes: int
    kernels: list[Kept]


def listed() -> list[Kept]:
    """Every kept kernel, the newest first."""
    found = []
    for path in _entries():
        with contextlib.suppress(FileNotFoundError):
            size, modified = path.stat().st_size, path.stat().st_mtime
            family, what, trouble = _described(path)
            found.append(Kept(path.name, size, modified, family, what, trouble))
    return sorted(found, key=lambda x: (-x.modified, x.name))


def clear(names: Iterable[str] | None = None) -> int:
    """Forget kept kernels, all or those of some names; returns how many. Each goes whole or stays."""
    wanted, gone = None if names is None else set(names), 0
    for path in _entries():
        if wanted is None or path.name in wanted:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                gone += 1
    return gone


def export(target: Path) -> int:
    """Write every kept kernel that can be used to one file, which is replaced as a whole; returns how many.

    Raises:
        InputError: the file cannot be written.
    """
    members = {}
    for path in _entries():
        with contextlib.suppress(sealed_files.UnusableError, OSError):
            data = sealed_files.read(path.parent, path.name)
            if data is not None:
                members[path.name] = data
    manifest = {"format": FORMAT, "entries": {x: hashlib.sha256(y).hexdigest() for x, y in members.items()}}
    replace_given("file", target, packed({MANIFEST: json.dumps(manifest).encode(), **members}))
    return len(members)


def import_(source: Path) -> int:
    """Take the kernels of a file that are not kept yet; returns how many. The file is checked before any is written.

    Raises:
        InputError: it is not a file that `export` wrote, or is not whole, or others may write the cache's directory.
    """
    try:
        members = _members(source)
    # damage raises almost anything: of zipfile, of each decompressor, of JSON, of what is made of it
    except Exception as error:
        rule = f"must be a file that `cutegemm cache export` wrote: {error}"
        raise field_error(InputError, "file", str(source), rule) from error
    folder, taken = kernel_cache.directory(), 0
    for name, data in members.items():
        if not (folder / name).exists():
            try:
                sealed_files.write(folder, name, data)
            except sealed_files.UnusableError as error:
                rule = f"must be a directory that only you may write: {error}"
                raise field_error(InputError, "CUTEGEMM_CACHE_DIR", str(folder), rule) from error
            taken += 1
    return taken


def _members(source: Path) -> dict[str, bytes]:
    members = unpacked(source)
    manifest = json.loads(members[MANIFEST])
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']}, not {FORMAT}")
    for name, digest in manifest["entries"].items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a kernel")
        if hashlib.sha256(members[name]).hexdigest() != digest:
            raise ValueError(f"{name} is damaged")
    return {name: members[name] for name in manifest["entries"]}


def _entries() -> list[Path]:
    folder = kernel_cache.directory()
    return sorted(x for x in folder.glob("*.zip") if _NAME.fullmatch(x.name)) if folder.is_dir() else []


def _described(path: Path) -> tuple[str, str, str]:
    """(family, what in words, why it cannot be used)."""
    try:
        data = sealed_files.read(path.parent, path.name)
        config = json.loads(unpacked(io.BytesIO(data or b""))["entry.json"])["config"]
    except (sealed_files.UnusableError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        return "", "", str(error)
    words = [" x ".join(map(str, config["tile"]))] if "tile" in config else []
    words += [config["operands"][0]["dtype"]] if "operands" in config else []
    words += [f"{config['stages']} stages"] if "stages" in config else []
    return config.get("family", "copy or finish"), ", ".join(words), ""


__all__ = ["CacheDone", "Kept", "clear", "export", "import_", "listed"]
