# SPDX-License-Identifier: Apache-2.0
"""Tables of single probes: fp8 GEMMs beside torch's, grouped GEMMs by the number of tokens, and the bandwidth
of quantization."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.results import Row

# table -> its files in the folder of results
FILES = {
    "fp8": ("checks/fp8.json",),
    "groups": ("checks/grouped_uniform.json", "checks/grouped_rows.json", "checks/grouped_weight.json"),
    "quantize": ("checks/quantize_bandwidth.json",),
}
# kinds of scales and suites, as `benchmarks.probes.fp8` names them
SCALES = {
    "tensor": "of a tensor",
    "row": "of rows",
    "block": "1 × 128 by 128 × 128",
    "blocks": "1 × 128 by 1 × 128",
}
SUITES = {"square": "squares", "prefill": "prefill", "decode": "1 to 64 rows"}
OURS, BF16 = "ours auto", "ours bf16"
# kinds of `benchmarks.probes.grouped`
GROUPED = {
    "forward": "groups of rows × torch",
    "weight": "gradient of the weights × torch",
    "fp8_rows": "fp8, scales of rows, × our bf16",
    "fp8_blocks": "fp8, scales of blocks, × our bf16",
}

Lines = tuple[list[str], list[list[str]]]


def fp8_lines(rows: list[Row]) -> Lines:
    """Head and lines: torch's time over ours and our bf16's over ours, by kind of scales and suite."""
    taken = {(x["what"], x["contender"], x["m"], x["n"], x["k"]): x for x in rows}
    lines = []
    for kind, words in SCALES.items():
        for suite, of in SUITES.items():
            ours = [x for x in rows if x["what"] == f"{kind} {suite}" and x["contender"] == OURS]
            plain = [taken[x["what"], BF16, x["m"], x["n"], x["k"]]["us"] / x["us"] for x in ours]
            cells = _mean_and_least(x["ratio"] for x in ours if x["ratio"])
            lines.append([words, of, str(len(ours)), *cells, *_mean_and_least(plain)])
    return ["scales", "GEMMs", "problems", "× torch", "least", "× our bf16", "least"], lines


def group_lines(rows: list[Row]) -> Lines:
    """Head and lines: the baseline's time over ours for even groups, by tokens, with the least in brackets."""
    rows = [x for x in rows if x["kind"] in GROUPED and x["spread"] == "uniform"]
    tokens = sorted({x["tokens"] for x in rows})
    lines = []
    for count in tokens:
        cells = []
        for kind in GROUPED:
            ours = [x for x in rows if (x["kind"], x["tokens"], x["contender"]) == (kind, count, "cutegemm")]
            mean, least = _mean_and_least(x["ratio"] for x in ours if x["ratio"])
            cells.append(f"{mean} ({least})" if mean else "")
        lines.append([str(count), *cells])
    return ["tokens", *GROUPED.values()], lines


def quantize_lines(rows: list[Row]) -> Lines:
    """Head and lines: microseconds, and the share of a copy's bandwidth, by kind of scales and shape."""
    ours = [x for x in rows if x["contender"] == "cutegemm"]
    shapes = list(dict.fromkeys((x["m"], x["k"]) for x in ours))
    cell = {(x["what"], x["m"], x["k"]): f"{x['us']:.1f}, **{x['of_copy']:.2f}**" for x in ours}
    kinds = dict.fromkeys(x["what"] for x in ours)
    head = ["scales", *(f"{m} × {k}: µs, of a copy's bandwidth" for m, k in shapes)]
    return head, [[kind.replace(" x ", " × "), *(cell.get((kind, *x), "") for x in shapes)] for kind in kinds]


def _mean_and_least(values: Iterable[float]) -> list[str]:
    found = list(values)
    return [f"**{statistics.geometric_mean(found):.2f}**", f"{min(found):.2f}"] if found else ["", ""]


LINES = {"fp8": fp8_lines, "groups": group_lines, "quantize": quantize_lines}
