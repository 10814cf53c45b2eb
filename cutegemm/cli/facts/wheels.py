# SPDX-License-Identifier: Apache-2.0
"""The DSL's wheels: their versions, and files that two of them install to one path with different contents."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution

from cutegemm.cli.facts.check import FINDING, OK, Check

DSL = "nvidia-cutlass-dsl"
# the versions whose PTX the package is made for (pyproject.toml)
FROM, BELOW = (4, 8, 1), (4, 9)
REQUIRED = f"{DSL}>=4.8.1,<4.9"


def check_wheels(installed: Iterable[Distribution]) -> list[Check]:
    """One check of the versions, one of the files."""
    wheels = {x.metadata["Name"]: x for x in installed if (x.metadata["Name"] or "").startswith(DSL)}
    if DSL not in wheels:
        return [
            Check(
                "DSL",
                FINDING,
                "the CuTe DSL is not installed: no kernel compiles",
                f"pip install '{REQUIRED}'",
            )
        ]
    version = wheels[DSL].version
    names = ", ".join(sorted(x.removeprefix(f"{DSL}-") for x in wheels if x != DSL))
    whole = f"pip install --force-reinstall --no-deps {' '.join(f'{x}=={version}' for x in sorted(wheels))}"
    others = {name: x.version for name, x in wheels.items() if x.version != version}
    found = []
    if not FROM <= _numbers(version) or _numbers(version)[:2] >= BELOW:
        says = f"{version}: kernels are made for {REQUIRED.removeprefix(DSL)}"
        found.append(Check("DSL", FINDING, says, f"pip install '{REQUIRED}'"))
    elif others:
        says = f"{DSL} is {version}, but " + ", ".join(f"{name} is {x}" for name, x in others.items())
        found.append(Check("DSL", FINDING, says, whole))
    else:
        found.append(Check("DSL", OK, f"{version} ({names})"))
    shared = overwritten(wheels.values())
    if shared:
        (first, second), paths = next(iter(shared.items()))
        count = sum(map(len, shared.values()))
        says = f"{first} and {second} install {count} different files to the same paths, such as {paths[0]}"
        keep = next((x for x in (first, second) if x.endswith("cu13")), first)
        gone = second if keep == first else first
        fix = f"pip uninstall -y {gone} && pip install --force-reinstall --no-deps {keep}=={wheels[keep].version}"
        found.append(Check("DSL files", FINDING, says, fix))
    else:
        found.append(Check("DSL files", OK, "no wheel overwrites another's"))
    return found


def overwritten(wheels: Iterable[Distribution]) -> dict[tuple[str, str], list[str]]:
    """Paths that two wheels both install, with different contents, by the wheels' names."""
    owners: dict[str, tuple[str, str]] = {}
    found: dict[tuple[str, str], list[str]] = {}
    for wheel in sorted(wheels, key=lambda x: str(x.metadata["Name"])):
        for path in wheel.files or ():
            if path.hash is None:
                continue
            name, value = str(wheel.metadata["Name"]), path.hash.value
            before = owners.setdefault(str(path), (name, value))
            if before[1] != value:
                found.setdefault((before[0], name), []).append(str(path))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in version.split(".") if x.isdecimal())


__all__ = ["check_wheels", "overwritten"]
