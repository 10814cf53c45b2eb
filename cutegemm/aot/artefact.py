# SPDX-License-Identifier: Apache-2.0
"""`Artefact`: the recipes of chosen problems with their kernels, and the file that holds them.

The file is a zip of `manifest.json` and a cubin and a PTX file per kernel, followed by the zip's SHA-256. It holds JSON
and machine code; nothing is unpickled. The checksum finds damage, not malice: whoever can write the file can write its
checksum. The kernels run on the GPU with the rights of the process.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cutegemm.aot.recipe import KernelBinary, KernelLaunch
from cutegemm.checks import plain, unplain
from cutegemm.errors import GemmError, InputError, field_error
from cutegemm.files import packed, replace_given, sealed, unpacked, unsealed
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec

FORMAT = 1
MAGIC = "cutegemm artefact"
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The launches of one problem, and the fields of its plan that `running` needs."""

    problem: Problem  # a call's operands must have its strides, and addresses at least as aligned
    tensors: tuple[str, ...]  # names of the call's tensors, in its order
    numbers: tuple[str, ...]  # names of the numbers passed by value, in its order
    steps: tuple[KernelLaunch, ...]  # the launches, in order; empty if D is empty
    workspace_bytes: int  # device memory besides the operands, 16-byte aligned
    counter_bytes: int  # counters, zero on entry and reset on exit
    parts: tuple[int, int, int]  # partial results per result of a reduction over D's rows, columns and all
    partial_width: tuple[int, int]  # D's rows and columns that one partial result covers
    plan: str  # the plan as text
    chosen_by: str  # what chose it

    # a checked call then allows for approximate functions in the epilogue
    config = None

    def __str__(self) -> str:
        return self.plan


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """The contents of an artefact's file."""

    spec: GemmSpec  # that was built
    recipes: tuple[Recipe, ...]  # one per problem
    kernels: tuple[KernelBinary, ...]  # that the recipes launch
    gpu: str  # that the plans are for
    sms: int  # of that GPU
    versions: Mapping[str, str]  # of cutegemm, and of the DSL that compiled the kernels


def checked_path(value: object) -> Path:
    """The path of an artefact from an argument; `~` is the home directory.

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
    """Write an artefact; an existing file is replaced as a whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    manifest = {
        "magic": MAGIC,
        "format": FORMAT,
        "versions": dict(artefact.versions),
        "gpu": artefact.gpu,
        "sms": artefact.sms,
        "spec": artefact.spec.to_data(),
        "kernels": [x.name for x in artefact.kernels],
        "recipes": [plain(x) for x in artefact.recipes],
    }
    members = {MANIFEST: json.dumps(manifest, indent=1).encode()}
    for i, kernel in enumerate(artefact.kernels):
        members |= {f"{i}.cubin": kernel.cubin, f"{i}.ptx": kernel.ptx.encode()}
    replace_given("path", path, sealed(packed(members, zipfile.ZIP_DEFLATED)))


def read(path: Path) -> Artefact:
    """Read an artefact and check its checksum.

    Raises:
        InputError: there is no such file, or it is not an artefact, or truncated, changed or of another format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise field_error(InputError, "path", str(path), f"cannot be read: {error.strerror}") from None
    try:
        return _artefact(path, unpacked(unsealed(data)))
    except GemmError:
        raise
    # a foreign zip, or a manifest that was written by hand, raises many kinds
    except Exception as error:
        rule = f"is not a whole artefact: {type(error).__name__}: {error}"
        raise field_error(InputError, "path", str(path), rule) from error


def _artefact(path: Path, members: Mapping[str, bytes]) -> Artefact:
    manifest = json.loads(members[MANIFEST])
    if manifest["magic"] != MAGIC or manifest["format"] != FORMAT:
        rule = f"has format {manifest['format']}; this version of cutegemm reads {FORMAT}: save it again"
        raise field_error(InputError, "path", str(path), rule)
    return Artefact(
        spec=GemmSpec.from_data(manifest["spec"]),
        recipes=tuple(unplain(Recipe, x) for x in manifest["recipes"]),
        kernels=tuple(
            KernelBinary(name, members[f"{i}.cubin"], members[f"{i}.ptx"].decode())
            for i, name in enumerate(manifest["kernels"])
        ),
        gpu=manifest["gpu"],
        sms=manifest["sms"],
        versions=manifest["versions"],
    )
