# SPDX-License-Identifier: Apache-2.0
"""The checks of `doctor`. Each is a function of its arguments, so that a test can inject a fault."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import Distribution
from pathlib import Path
from shlex import quote

from cutegemm.arch.records import RECORDS
from cutegemm.cli.gpus import DriverInfo, driver_info, hopper

OK, NOTE, FINDING = "ok", "note", "finding"
DSL = "nvidia-cutlass-dsl"
# supported versions of the DSL (pyproject.toml)
FROM, BELOW = (4, 8, 1), (4, 9)
REQUIRED = f"{DSL}>=4.8.1,<4.9"
# major compute capability -> required features that such a GPU lacks
_LACKS = {8: "wgmma, TMA and clusters", 10: "wgmma (it has tcgen05 instead)", 12: "wgmma"}
# CUDA version of the DSL's default libraries
DSL_CUDA = (12, 9)


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    status: str  # "ok", "note" (nothing to do) or "finding"
    message: str  # the result
    fix: str = ""  # the command that fixes a finding; empty otherwise


@dataclass(frozen=True)
class Health:
    """All checks of this machine."""

    checks: list[Check]

    @property
    def findings(self) -> list[Check]:
        """The checks with something to fix."""
        return [x for x in self.checks if x.status == FINDING]


def examine() -> Health:
    """Run all checks."""
    here, folder = driver_info(), _cache_folder()
    torch = torch_build()
    checks = [
        check_python(sys.version_info[:2]),
        check_driver(here, torch),
        check_gpu(here),
        *check_wheels(list(metadata.distributions())),
        check_torch(torch, here),
        check_folder("kernel cache", folder / "kernels"),
        check_database(folder),
        _of_ladder("nvrtc", "load_nvrtc", "pip install nvidia-cuda-nvrtc"),
        _of_ladder("CUDA headers", "include_dirs", "pip install nvidia-cuda-runtime nvidia-cuda-crt"),
        check_nvdisasm(),
    ]
    return Health(checks)


def check_python(version: tuple[int, ...]) -> Check:
    """The Python version is supported."""
    message = ".".join(map(str, version))
    if version >= (3, 10):
        return Check("python", OK, message)
    return Check("python", FINDING, f"{message}: 3.10 or newer is needed", "python3.12 -m venv .venv")


def check_driver(here: DriverInfo, torch: tuple[str, str | None] | None) -> Check:
    """The driver supports the CUDA of torch and the DSL."""
    if here.missing:
        message = (
            f"{here.missing} is not installed: the driver is not checked, and the ladder does not compile"
        )
        return Check("driver", FINDING, message, f"pip install '{here.missing}>=12.9' 'cuda-core>=1.0'")
    if here.version is None:
        return Check("driver", NOTE, f"none ({here.trouble}): kernels compile, and run in the emulator")
    message = f"runs CUDA up to {here.version[0]}.{here.version[1]}"
    fix = "sudo apt-get install --only-upgrade cuda-drivers"
    if here.trouble:
        return Check("driver", FINDING, f"{message}, but does not start: {here.trouble}", "nvidia-smi")
    built = tuple(map(int, (torch[1] or "0.0").split(".")[:2])) if torch else (0, 0)
    need = max(built[0], DSL_CUDA[0])
    if here.version[0] < need:
        return Check("driver", FINDING, f"{message}; torch and the DSL need CUDA {need}", fix)
    return Check("driver", OK, message)


def check_gpu(here: DriverInfo) -> Check:
    """There is a Hopper GPU."""
    gpu = hopper(here)
    if gpu is None and not here.gpus:
        return Check("gpu", NOTE, "none: plans are made for an H200, kernels run in the emulator")
    if gpu is None:
        other = here.gpus[0]
        major, minor = other.capability
        lacks = _LACKS.get(major, "instructions of sm_90a")
        message = (
            f"{other.name} ({major}.{minor}) lacks {lacks}: calls on it are refused or fall back to torch"
        )
        return Check("gpu", NOTE, message)
    if any(x.name == gpu.name and x.sms == gpu.sms for x in RECORDS):
        return Check("gpu", OK, f"{gpu.name}, {gpu.sms} SMs")
    message = (
        f"{gpu.name}, {gpu.sms} SMs: no record; planned with the H200's rates and this GPU's own properties"
    )
    return Check("gpu", NOTE, message)


def check_wheels(installed: Iterable[Distribution]) -> list[Check]:
    """The DSL's wheels: a check of their versions, and one of their files."""
    wheels = {x.metadata["Name"]: x for x in installed if (x.metadata["Name"] or "").startswith(DSL)}
    if DSL not in wheels:
        message = "the CuTe DSL is not installed: no kernel compiles"
        return [Check("DSL", FINDING, message, f"pip install '{REQUIRED}'")]
    version = wheels[DSL].version
    names = ", ".join(sorted(x.removeprefix(f"{DSL}-") for x in wheels if x != DSL))
    whole = f"pip install --force-reinstall --no-deps {' '.join(f'{x}=={version}' for x in sorted(wheels))}"
    others = {name: x.version for name, x in wheels.items() if x.version != version}
    checks = []
    if not FROM <= _numbers(version) or _numbers(version)[:2] >= BELOW:
        message = f"{version}: kernels are made for {REQUIRED.removeprefix(DSL)}"
        checks.append(Check("DSL", FINDING, message, f"pip install '{REQUIRED}'"))
    elif others:
        message = f"{DSL} is {version}, but " + ", ".join(f"{name} is {x}" for name, x in others.items())
        checks.append(Check("DSL", FINDING, message, whole))
    else:
        checks.append(Check("DSL", OK, f"{version} ({names})"))
    shared = overwritten(wheels.values())
    if shared:
        (first, second), paths = next(iter(shared.items()))
        count = sum(map(len, shared.values()))
        message = (
            f"{first} and {second} install {count} different files to the same paths, such as {paths[0]}"
        )
        keep = next((x for x in (first, second) if x.endswith("cu13")), first)
        gone = second if keep == first else first
        fix = f"pip uninstall -y {gone} && pip install --force-reinstall --no-deps {keep}=={wheels[keep].version}"
        checks.append(Check("DSL files", FINDING, message, fix))
    else:
        checks.append(Check("DSL files", OK, "no wheel overwrites another's"))
    return checks


def overwritten(wheels: Iterable[Distribution]) -> dict[tuple[str, str], list[str]]:
    """Paths that two wheels install with different contents, by the wheels' names."""
    owners: dict[str, tuple[str, str]] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    for wheel in sorted(wheels, key=lambda x: str(x.metadata["Name"])):
        for path in wheel.files or ():
            if path.hash is None:
                continue
            name, value = str(wheel.metadata["Name"]), path.hash.value
            before = owners.setdefault(str(path), (name, value))
            if before[1] != value:
                shared.setdefault((before[0], name), []).append(str(path))
    return shared


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in version.split(".") if x.isdecimal())


def torch_build() -> tuple[str, str | None] | None:
    """torch's version and the CUDA it was built for, read from its files; None if it is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    words = path.read_text("utf-8") if path.exists() else ""
    version = re.search(r"__version__\s*=\s*'([^']+)'", words)
    cuda = re.search(r"cuda[^=]*=\s*'([\d.]+)'", words)
    return version[1] if version else "unknown", cuda[1] if cuda else None


def check_torch(torch: tuple[str, str | None] | None, here: DriverInfo) -> Check:
    """torch is installed, and built for CUDA if there is a GPU."""
    if torch is None:
        return Check(
            "torch", FINDING, "not installed: Gemm.run and cutegemm.nn need it", "pip install 'torch>=2.11'"
        )
    version, cuda = torch
    if cuda is not None:
        return Check("torch", OK, f"{version}, CUDA {cuda}")
    if not here.gpus:
        return Check("torch", NOTE, f"{version}, built without CUDA: enough without a GPU")
    fix = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"
    return Check("torch", FINDING, f"{version} was built without CUDA, and there is a GPU", fix)


def _cache_folder() -> Path:
    """The parent of the kernel cache."""
    from cutegemm.compiling import kernel_cache

    return kernel_cache.directory().parent


def check_folder(name: str, folder: Path) -> Check:
    """A folder is writable, belongs to the user, and other users cannot write it."""
    existing = next((x for x in (folder, *folder.parents) if x.exists()), folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        fix = f"export CUTEGEMM_CACHE_DIR=$HOME/.cache/cutegemm  # or: chmod u+rwx {quote(str(existing))}"
        return Check(name, FINDING, f"{existing} cannot be written: every kernel compiles again", fix)
    if existing != folder:
        return Check(name, OK, f"{folder} (not created yet)")
    from cutegemm.compiling import sealed_files

    trouble = sealed_files.complaint(os.stat(folder))
    if trouble is not None:
        change = "chmod go-w" if "written by others" in trouble else "sudo chown $(id -u)"
        fix = f"{change} {quote(str(folder))}"
        return Check(name, FINDING, f"{folder} {trouble}, so it is not used", fix)
    return Check(name, OK, str(folder))


def check_database(folder: Path) -> Check:
    """The user's database opens."""
    import sqlite3

    from cutegemm.database.user_database import default_path

    path = default_path()
    if not path.exists():
        return Check("database", OK, f"{path} (nothing tuned yet)")
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as file:
            count = file.execute("SELECT count(*) FROM entries").fetchone()[0]
    except sqlite3.Error as error:
        fix = f"mv {quote(str(path))} {quote(f'{path}.damaged')}"
        return Check("database", FINDING, f"{path} is not readable: {error}", fix)
    return Check("database", OK, f"{path}, {count} entries")


def _of_ladder(name: str, function: str, fix: str) -> Check:
    """A tool with which the handwritten ladder compiles."""
    try:
        toolkit = importlib.import_module("handwritten.ladder.toolkit")
    except ImportError as error:
        return Check(name, NOTE, f"not checked: the ladder, which needs it, cannot be imported ({error})")
    return check_call(name, getattr(toolkit, function), fix)


def check_call(name: str, call: Callable[[], object], fix: str) -> Check:
    """A call that raises if something is missing."""
    try:
        result = call()
    # a loader of libraries may raise anything
    except Exception as error:
        return Check(name, FINDING, f"missing, so the ladder does not compile: {error}", fix)
    return Check(name, OK, str(result[0]) if isinstance(result, tuple) and result else "found")


def check_nvdisasm() -> Check:
    """The disassembler is installed."""
    from cutegemm.compiling import resources

    tool = resources.nvdisasm()
    if tool is None:
        return Check("nvdisasm", FINDING, "missing: no SASS", "pip install nvidia-cuda-nvdisasm")
    return Check("nvdisasm", OK, tool)
