# SPDX-License-Identifier: Apache-2.0
"""`Artefact`: the recipes of chosen problems with their kernels, and the file that holds them.

The file is a zip: `manifest.json`, `manifest.sha256`, and a cubin and a PTX file per kernel, whose SHA-256 the manifest
names. It is JSON and machine code, nothing is unpickled. The checksums find damage and mix-ups, not malice: whoever
can write the file can write its checksums, and what is loaded runs on the GPU with the rights of the process.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cutegemm.aot.recipe import KernelBinary, KernelLaunch
from cutegemm.checks import plain, unplain
from cutegemm.errors import GemmError, InputError, field_error
from cutegemm.files import packed, replace_given, unpacked
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec

FORMAT = 1
MAGIC = "cutegemm artefact"
MANIFEST, SEAL = "manifest.json", "manifest.sha256"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one problem is served: what `running` needs of a plan, and the launches."""

    problem: Problem  # operands of a call must lie as its operands do, at addresses at least as aligned
    tensors: tuple[str, ...]  # names of the call's tensors, in its order
    numbers: tuple[str, ...]  # names of the numbers passed by value, in its order
    steps: tuple[KernelLaunch, ...]  # the launches, in order; empty where D is empty
    workspace_bytes: int  # device memory beside the operands, 16-byte aligned
    counter_bytes: int  # counters that a run finds zero and leaves zero
    parts: tuple[int, int, int]  # partial results per result of a reduction over D's rows, columns and all
    partial_width: tuple[int, int]  # D's rows and columns that one partial result covers
    plan: str  # the plan as text
    chosen_by: str  # what chose it

    # a call that is checked assumes an epilogue of approximate functions
    config = None

    def __str__(self) -> str:
        return self.plan


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """What a file holds."""

    spec: GemmSpec  # that was built
    recipes: tuple[Recipe, ...]  # a problem each
    kernels: tuple[KernelBinary, ...]  # what they launch
    gpu: str  # the GPU that the plans are for
    sms: int  # its SMs
    versions: Mapping[str, str]  # cutegemm's, and the version of the DSL that compiled the kernels


def checked_path(value: object) -> Path:
    """The path of an artefact that a caller gave; `~` is the home directory.

    Raises:
        InputError: it is not a path.
    """
    if (
        not isinstance(value, (str, os.PathLike))
        or not isinstance(os.fspath(value), str)
        or not os.fspath(value)
    ):
        raise field_error(InputError, "path", value, "must be the path of an artefact", "gemm.cutegemm")
    try:
        # encoded as the operating system takes it, which ends at a zero
        if b"\0" not in os.fsencode(value):
            return Path(value).expanduser()
        rule = "must not hold a zero character"
    except (RuntimeError, UnicodeEncodeError) as error:
        rule = f"must be the path of an artefact ({error})"
    raise field_error(InputError, "path", value, rule, "gemm.cutegemm")


def write(path: Path, artefact: Artefact) -> None:
    """Write an artefact; a file that is there is replaced whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    members: dict[str, bytes] = {}
    kernels = []
    for i, kernel in enumerate(artefact.kernels):
        parts = {f"{i}.cubin": kernel.cubin, f"{i}.ptx": kernel.ptx.encode()}
        members |= parts
        kernels.append({"name": kernel.name, "sha256": {name: _digest(x) for name, x in parts.items()}})
    manifest = {
        "magic": MAGIC,
        "format": FORMAT,
        "versions": dict(artefact.versions),
        "gpu": artefact.gpu,
        "sms": artefact.sms,
        "spec": artefact.spec.to_data(),
        "kernels": kernels,
        "recipes": [plain(x) for x in artefact.recipes],
    }
    text = json.dumps(manifest, indent=1).encode()
    sealed = {MANIFEST: text, SEAL: _digest(text).encode(), **members}
    replace_given("path", path, packed(sealed, zipfile.ZIP_DEFLATED))


def read(path: Path) -> Artefact:
    """Read an artefact and check every checksum.

    Raises:
        InputError: there is no such file, or it is not an artefact, or truncated, changed or of another format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise field_error(InputError, "path", str(path), f"cannot be read: {error.strerror}") from None
    try:
        return _checked(path, unpacked(io.BytesIO(data)))
    except GemmError:
        raise
    # damage raises almost anything: of zipfile, of each decompressor, of JSON, of what is made of it
    except Exception as error:
        rule = f"is not a whole artefact: {type(error).__name__}: {error}"
        raise field_error(InputError, "path", str(path), rule) from error


def _checked(path: Path, members: Mapping[str, bytes]) -> Artefact:
    text = members[MANIFEST]
    if _digest(text) != members[SEAL].decode():
        raise field_error(InputError, "path", str(path), "was changed: its manifest has another checksum")
    manifest = json.loads(text)
    if manifest["magic"] != MAGIC or manifest["format"] != FORMAT:
        rule = f"has format {manifest['format']}; this version of cutegemm reads {FORMAT}: save it again"
        raise field_error(InputError, "path", str(path), rule)
    kernels = []
    for i, kernel in enumerate(manifest["kernels"]):
        for name, wanted in kernel["sha256"].items():
            if _digest(members[name]) != wanted:
                raise field_error(InputError, "path", str(path), f"was changed: {name} has another checksum")
        kernels.append(KernelBinary(kernel["name"], members[f"{i}.cubin"], members[f"{i}.ptx"].decode()))
    return Artefact(
        spec=GemmSpec.from_data(manifest["spec"]),
        recipes=tuple(unplain(Recipe, x) for x in manifest["recipes"]),
        kernels=tuple(kernels),
        gpu=manifest["gpu"],
        sms=manifest["sms"],
        versions=manifest["versions"],
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
