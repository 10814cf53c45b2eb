# SPDX-License-Identifier: Apache-2.0
"""Markdown tables of results rows, one function for each kind of suite; `benchmarks.table` writes them."""

from __future__ import annotations

from typing import Any

from benchmarks import contenders, figures, libraries, peer_rows, results
from benchmarks.results import Row
from benchmarks.suites import BRIEF

# What was timed on the CPU -> its name for readers, the factor from microseconds, and the unit.
HOST = {
    "call": ("one call, 256³", 1.0, "µs"),
    "import": ("import, beyond torch", 1e-6, "s"),
    "first_kernel": ("first kernel of a spec", 1e-6, "s"),
    "from_cache": ("the same from the cache", 1e-6, "s"),
}
INVARIANT = "invariant_"  # suite prefix in rows of `benchmarks.invariant`
SQUARES = f"{peer_rows.PREFIX}square"


def markdown(head: list[str], lines: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]


def summary_table(rows: list[Row]) -> list[str]:
    """Geometric means per suite."""
    lines = [[s["suite"], s["dtype"], s["majors"], s["regime"], *_ratios(s)] for s in results.summary(rows)]
    head = ["suite", "dtype", "majors", "regime", "problems", "× cuBLAS, geometric mean", "least", "greatest"]
    return markdown(head, lines)


def _ratios(of: dict[str, Any]) -> list[str]:
    return [str(of["rows"]), f"**{of['geomean']:.2f}**", f"{of['least']:.2f}", f"{of['greatest']:.2f}"]


def brief_table(rows: list[Row]) -> list[str]:
    """Geometric means of the most important suites."""
    wanted = {(suite, "kk"): words for suite, words in BRIEF.items()}
    found = {(s["suite"], s["majors"]): s for s in results.summary(rows)}
    lines = [[words, *_ratios(found[key])] for key, words in wanted.items() if key in found]
    return markdown(["bf16, TN", "problems", "× cuBLAS, geometric mean", "least", "greatest"], lines)


def size_of(row: Row) -> str:
    """A row's extents, preceded by the batch size if there is a batch."""
    extents = f"{row['m']}×{row['n']}×{row['k']}"
    return extents if row["batch"] == 1 else f"{row['batch']} of {extents}"


def suite_table(rows: list[Row]) -> list[str]:
    """Every problem of one suite: us | TFLOP/s | x baseline."""
    lines = [
        [
            size_of(r),
            r["dtype"],
            r["majors"],
            r["regime"],
            f"{r['us']:.1f}",
            f"{r['tflops']:.0f}",
            f"{r['baseline_us']:.1f}",
            f"**{r['ratio']:.2f}**",
        ]
        for r in rows
        if r["ratio"] is not None and r["contender"] != r["baseline"]
    ]
    return markdown(["M×N×K", "dtype", "majors", "regime", "µs", "TFLOP/s", "cuBLAS µs", "× cuBLAS"], lines)


def epilogue_table(rows: list[Row]) -> list[str]:
    """Every fused epilogue: its time, and the other contenders' time divided by it."""
    lines = []
    for (name, size), group in figures.by_case(rows).items():
        if "cutegemm" not in group:
            continue
        us = {contender: row["us"] for contender, row in group.items()}
        fused = us["cutegemm"]
        others = ("torch_compile", "eager", "cublaslt" if "cublaslt" in us else "cublas")
        lines.append(
            [
                name.replace("_", " "),
                "×".join(map(str, size)),
                f"{fused:.1f}",
                f"**{fused / us['cutegemm_plain']:.2f}**" if "cutegemm_plain" in us else "",
                *(f"{us[other] / fused:.2f}" if other in us else "" for other in others),
            ]
        )
    head = ["epilogue", "M×N×K", "µs", "over the plain GEMM", "× torch.compile", "× eager", "× cuBLAS"]
    return markdown(head, lines)


def host_table(rows: list[Row]) -> list[str]:
    """Times on the CPU."""
    lines = []
    for row in rows:
        what, scale, unit = HOST[row["what"]]
        spread = f"{row['us_min'] * scale:.2f} to {row['us_max'] * scale:.2f}"
        lines.append([what, row["contender"], f"{row['us'] * scale:.2f} {unit}", spread])
    return markdown(["what", "who", "median", "least to greatest"], lines)


def chain_table(rows: list[Row]) -> list[str]:
    """Every chain at each M: time per layer, share of the read roof, and cuBLAS's time."""
    lines = [
        [
            row["what"].replace("x", "×"),
            str(row["m"]),
            f"{row['us']:.2f}",
            f"{row['gb_s'] / 1e3:.2f}",
            "" if row["of_roof"] is None else f"{row['of_roof']:.0%}",
            "" if row["baseline_us"] is None else f"{row['baseline_us']:.2f}",
            "" if row["ratio"] is None else f"**{row['ratio']:.2f}**",
        ]
        for row in rows
        if row["contender"] == "cutegemm"
    ]
    return markdown(
        ["layers, N×K", "M", "µs a layer", "TB/s", "of the read roof", "cuBLAS µs", "× cuBLAS"], lines
    )


def llama_table(rows: list[Row]) -> list[str]:
    """Every model: tokens per second of every contender, our speed-up over torch.compile, and peak memory."""
    names = ("torch", "torch_compile", "cutegemm", "cutegemm_compile")
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["what"], row["regime"]), {})[row["contender"]] = row
    ratios, lines = results.compiled_ratios(rows), []
    for (what, regime), group in groups.items():
        speeds = [f"{group[x]['tokens_s']:,.0f}" if x in group else "" for x in names]
        peaks = [group[x]["peak_mib"] if x in group else None for x in names[1::2]]
        key = what, regime, "compile"
        ratio = f"**{ratios[key]:.2f}**" if key in ratios else ""
        lines.append([what, *speeds, ratio, *("" if x is None else f"{x:,.0f}" for x in peaks)])
    head = ["tokens/s", "torch", "torch.compile", "cutegemm", "cutegemm, compiled", "× torch.compile"]
    return markdown([*head, "MiB, torch.compile", "MiB, cutegemm, compiled"], lines)


def invariant_table(rows: list[Row]) -> list[str]:
    """The cost of batch_invariant=True: problems, problems with another kernel, relative speed."""
    groups: dict[str, dict[tuple[Any, ...], dict[str, Row]]] = {}
    for row in rows:
        size = tuple(row[x] for x in ("dtype", "majors", "batch", "m", "n", "k"))
        groups.setdefault(row["suite"], {}).setdefault(size, {})[row["contender"]] = row
    lines = []
    for suite, found in groups.items():
        pairs = [(x["cutegemm"], x["cutegemm_invariant"]) for x in found.values() if len(x) == 2]
        if not pairs:
            continue
        ratios = [invariant["ratio"] for _, invariant in pairs]
        others = sum(free["plan"] != invariant["plan"] for free, invariant in pairs)
        speed = f"**{results.geometric_mean(ratios):.3f}**"
        lines.append(
            [suite.removeprefix(INVARIANT), str(len(pairs)), str(others), speed, f"{min(ratios):.3f}"]
        )
    return markdown(
        ["suite", "problems", "with another kernel", "× the free kernels, geometric mean", "least"], lines
    )


def occupied_table(rows: list[Row]) -> list[str]:
    """Every scheduler alone and with occupied SMs, and the slow-down."""
    groups: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in rows:
        groups.setdefault((size_of(row), row["contender"]), {})[row["held"]] = row
    lines = []
    for (size, who), found in groups.items():
        alone, held = found[0], found[max(found)]
        slower = f"**{held['us'] / alone['us']:.2f}**"
        lines.append([size, who, f"{alone['us']:.1f}", str(held["held"]), f"{held['us']:.1f}", slower])
    return markdown(["M×N×K", "scheduler", "µs alone", "SMs occupied", "µs then", "times longer"], lines)


PEERS_SAY = (
    "Other libraries' time divided by cutegemm's, on three problems of each suite; speed and energy of the squares.",
    "quack-kernels needs rows that are multiples of 16 bytes. torch.compile ran with max-autotune.",
)


def peers_table(rows: list[Row]) -> list[str]:
    """Our speed-up over each other contender by suite, on three problems; then speed and energy of the squares."""
    names = {
        contenders.BASELINE: "cuBLAS",
        libraries.QUACK: "quack",
        libraries.QUACK_TUNED: "quack, tuned",
        libraries.COMPILED: "torch.compile",
    }
    lines = []
    for suite, found in peer_rows.means(rows).items():
        cells = [f"**{found[x][0]:.2f}** ({found[x][1]:.2f})" if x in found else "" for x in names]
        lines.append([suite, *cells])
    table = markdown(["suite, three problems", *(f"× {x} (least)" for x in names.values())], lines)
    squares = [x for x in peer_rows.by_problem(rows) if x[contenders.OURS]["suite"] == SQUARES]
    head = ["TFLOP/s, TFLOP/J", "cutegemm", *names.values()]
    lines = [
        [size_of(group[contenders.OURS]), *(_energy(group.get(x)) for x in (contenders.OURS, *names))]
        for group in squares
    ]
    table = [*PEERS_SAY, "", *table]
    return [*table, "", *markdown(head, lines)] if lines else table


def _energy(row: Row | None) -> str:
    if row is None:
        return ""
    speed = f"{row['tflops']:.0f}"
    return speed if row["tflop_per_j"] is None else f"{speed}, {row['tflop_per_j']:.2f}"


TABLES = {  # all but the tables with one line per problem
    "brief": brief_table,
    "summary": summary_table,
    "host": host_table,
    "epilogue": epilogue_table,
    "chain": chain_table,
    "llama": llama_table,
    "models": llama_table,
    "invariant": invariant_table,
    "occupied": occupied_table,
    "peers": peers_table,
}
