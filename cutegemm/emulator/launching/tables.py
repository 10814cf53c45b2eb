# SPDX-License-Identifier: Apache-2.0
"""Tables of a launch's counters: instructions by kind, traffic, and the memory accesses that cost most.

report = launch(kernel, what, Options(meter=True))
print(profile(report))
print(profile(before, after))
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from cutegemm.emulator.launching.report import Report
from cutegemm.emulator.ptx.kernel import TYPE_BYTES
from cutegemm.errors import EmulatorError, check

WIDTH = 110  # columns of the printed tables
COSTLY_LINES = 8


def by_kind(instructions: Mapping[str, int]) -> Counter[str]:
    """Warp instructions by kind (`kind_of`)."""
    out: Counter[str] = Counter()
    for op, count in instructions.items():
        out[kind_of(op)] += count
    return out


def kind_of(op: str) -> str:
    """The kind of an opcode in tables: `fma.rn.f32` -> "fma.f32", `ld.shared.v4.b32` -> "ld.shared"."""
    parts = op.split(".")
    head = parts[0]
    if head in ("ld", "st", "atom", "red"):
        spaces = [p.split("::")[0] for p in parts]
        return ".".join([head, *(x for x in spaces if x in ("global", "shared", "param", "local"))][:2])
    if head in ("wgmma", "mbarrier", "wmma", "mma"):
        return ".".join(parts[:2])
    if op.startswith("cp."):
        return "cp.async.bulk.tensor" if ".tensor" in op else ".".join(parts[:3])
    if parts[-1] in TYPE_BYTES and parts[-1][0] in "fb" and parts[-1] not in ("b16", "b32", "b64"):
        return f"{head}.{parts[-1]}"
    return head


def profile(report: Report, other: Report | None = None) -> str:
    """The counters of one launch as tables, or of two side by side (`compare`).

    Raises:
        EmulatorError: an argument is not a report.
    """
    _needed("report", report)
    if other is not None:
        _needed("other", other)
        return compare(report, other)
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    table = Table("kind", "all warps", *(role.name for role in report.roles), title="warp instructions")
    roles = [by_kind(role.instructions) for role in report.roles]
    for kind, count in by_kind(report.instructions).most_common():
        table.add_row(kind, f"{count:,}", *(f"{role[kind]:,}" for role in roles))
    console.print(table)
    table = Table("counter", "value", title="traffic and operations")
    for name, value in report.counters.items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    console.print(table)
    _roles(console, report)
    _costly(console, report, "costliest memory accesses")
    return console.export_text()


def _needed(field: str, report: object) -> None:
    rule = "must be a Report, such as launch returns"
    check(isinstance(report, Report), EmulatorError, rule, field=field, value=report)


def _roles(console: Console, report: Report) -> None:
    """Print what each role executed, and how often it waited."""
    if not report.roles:
        return
    table = Table("role", "warps", "instructions", "a warp", "waits (that blocked)", title="roles")
    for role in report.roles:
        waits = ", ".join(f"{kind} {n:,} ({role.blocked[kind]:,})" for kind, n in role.waits.items())
        each = sorted(executed.total() for executed in role.per_warp.values())
        per_warp = f"{each[0]:,}" if each[0] == each[-1] else f"{each[0]:,} to {each[-1]:,}"
        table.add_row(role.name, ", ".join(map(str, role.warps)), f"{role.total:,}", per_warp, waits)
    console.print(table)


def _costly(console: Console, report: Report, title: str) -> None:
    """Print the memory accesses that cost more than the least possible."""
    costly = [c for c in report.lines if c.units > c.ideal][:COSTLY_LINES]
    if costly:
        table = Table("PTX line", "instruction", "space", "requests", "units", "least", title=title)
        for c in costly:
            table.add_row(
                str(c.line), c.text[:48], c.space, f"{c.requests:,}", f"{c.units:,}", f"{c.ideal:,}"
            )
        console.print(table)


def compare(first: Report, second: Report) -> str:
    """Two launches side by side: every kind and counter, with the ratio of the second to the first.

    Raises:
        EmulatorError: an argument is not a report.
    """
    _needed("first", first)
    _needed("second", second)
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    table = Table("", "first", "second", "ratio")
    one, two = by_kind(first.instructions), by_kind(second.instructions)
    rows: list[tuple[str, float, float]]
    rows = [(k, one[k], two[k]) for k in sorted(one | two, key=lambda k: -max(one[k], two[k]))]
    names = dict.fromkeys([*first.counters, *second.counters])
    rows += [(n.replace("_", " "), first.counters.get(n, 0), second.counters.get(n, 0)) for n in names]
    for name, x, y in rows:
        table.add_row(name, f"{x:,}", f"{y:,}", f"{y / x:.2f}" if x else "new")
    console.print(table)
    _costly(console, first, "first: costliest memory accesses")
    _costly(console, second, "second: costliest memory accesses")
    return console.export_text()
