# SPDX-License-Identifier: Apache-2.0
"""Results files: {schema, environment, rows}, written after every problem and resumed where they stopped.

python -m benchmarks.results OUT IN...       merge files measured on one environment into OUT
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import command_line

SCHEMA = 1
Row = dict[str, Any]

# What a row is made of: the problem, the times of a contender, the clock and power they were taken at, the baseline.
CASE_FIELDS = ("suite", "dtype", "majors", "m", "n", "k", "batch", "epilogue", "beta")
TIMES = ("us", "us_min", "us_max", "rounds")
REGIME = ("regime", "sm_mhz", "watts")
BASELINE = ("baseline", "baseline_us", "ratio")

ROW_FIELDS = (
    *CASE_FIELDS, "contender", "plan", *TIMES, *REGIME, "tflops", "tflop_per_j", *BASELINE, "samples",
)  # fmt: skip
# Of a sweep: a spec's fields beside the rest, and why a spec that has no times has none.
SWEEP_FIELDS = (*ROW_FIELDS, "spec", "refused")
# Of other libraries beside ours: why a contender that has no times has none.
PEER_FIELDS = (*ROW_FIELDS, "refused")
# Of a chain of layers: times are those of a layer, `what` is the layers' N x K, bytes those of a layer's weights.
CHAIN_FIELDS = (
    "suite", "what", "dtype", "m", "layers", "bytes", "contender", "plan", *TIMES, *REGIME,
    "gb_s", "roof_gb_s", "of_roof", *BASELINE, "samples",
)  # fmt: skip
HOST_FIELDS = ("suite", "what", "contender", *TIMES, *BASELINE)
# Of a model at work: `what` names both, m is tokens a call, peak memory is what a call adds in MiB.
LLAMA_FIELDS = (
    "suite", "what", "dtype", "m", "contender", *TIMES, *REGIME, "tokens_s", "peak_mib", *BASELINE, "samples",
)  # fmt: skip
# Of our functions and modules beside torch's: `what` names the work; a contender that died has its error for times.
PYTORCH_FIELDS = (
    "suite", "what", "contender", *TIMES, *REGIME, "peak_mib", *BASELINE, "samples", "error",
)  # fmt: skip
# Of groups: `what` is the kind of work, the layer, its tokens and how they spread; `roof_us` reads and writes once.
GROUPED_FIELDS = (
    "suite", "what", "kind", "layer", "tokens", "spread", "contender", "plan", *TIMES, *REGIME, "roof_us", *BASELINE,
    "samples", "refused",
)  # fmt: skip
# Of a probe of operand types: `what` names the kind and the suite; the error is that of the first rows against fp64.
PROBE_FIELDS = (*PEER_FIELDS, "what", "error")
# of suites whose rows are not those of single GEMMs beside cuBLAS
FIELDS = {
    "probe": PROBE_FIELDS,
    "host": HOST_FIELDS,
    "chain": CHAIN_FIELDS,
    "fresh_chain": (*CHAIN_FIELDS, "refused"),
    "llama": LLAMA_FIELDS,
    "models": LLAMA_FIELDS,
    "pytorch": PYTORCH_FIELDS,
    "grouped": GROUPED_FIELDS,
}
MODELS = ("llama", "models")
KEY_FIELDS = (*CASE_FIELDS, "what", "contender", "regime")

# What must agree for rows to stand in one file. Date, temperature and clocks at the start may differ.
SAME_ENVIRONMENT = ("gpu", "sms", "driver", "cuda", "torch", "dsl", "python", "power_limit_watts", "sources")


def size_text(batch: int, m: int, n: int, k: int) -> str:
    """A problem's extents in one word."""
    return f"{m}x{n}x{k}" if batch == 1 else f"{batch}:{m}x{n}x{k}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem of one suite: D[m, n] = A[m, k] @ B[k, n].

    `majors` names the unit-stride axes of A and B: "kk" is A row-major and B column-major (BLAS's TN),
    "kn" both row-major. D is row-major.
    """

    suite: str
    dtype: str
    majors: str
    m: int
    n: int
    k: int
    batch: int = 1
    epilogue: str = "none"
    beta: float = 0.0

    @property
    def flops(self) -> int:
        """Multiplications plus additions of the product."""
        return 2 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        return f"{self.suite} {self.size} {self.dtype} {self.majors}"

    @property
    def size(self) -> str:
        """M x N x K, with the number of products before it where there are several."""
        return size_text(self.batch, self.m, self.n, self.k)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Times of one contender over all rounds, in microseconds a call; clock and power while it ran.

    `samples` has one time a round; those of contenders that were measured together pair up.
    """

    us: float
    us_min: float
    us_max: float
    rounds: int
    sm_mhz: float | None = None
    watts: float | None = None
    samples: tuple[float, ...] = ()


def compare(measured: dict[str, Measurement], baseline: str) -> list[Row]:
    """What was measured of a contender and of the baseline beside it, one part of a row per contender in the given
    order: `TIMES`, clock and power, samples, `BASELINE`.
    """
    base = measured[baseline].us if baseline in measured else None
    rows = []
    for name, m in measured.items():
        numbers = {"contender": name} | asdict(m) | {"samples": list(m.samples)}
        beside = {"baseline": None if base is None else baseline, "baseline_us": base}
        rows.append(numbers | beside | {"ratio": None if base is None else base / m.us})
    return rows


def case_rows(
    case: Case, measured: dict[str, Measurement], *, plans: dict[str, str | None], regime: str, baseline: str
) -> list[Row]:
    """Rows of one problem, measured together."""
    rows = []
    for row in compare(measured, baseline):
        m = measured[row["contender"]]
        tflops = case.flops / m.us / 1e6
        row |= asdict(case) | {"plan": plans.get(row["contender"]), "regime": regime}
        row |= {"tflops": tflops, "tflop_per_j": tflops / m.watts if m.watts else None}
        rows.append({field: row[field] for field in ROW_FIELDS})
    return rows


def compiled_ratios(measured: Iterable[Row]) -> dict[str, float]:
    """By scenario how much faster the converted model is than the original, both compiled."""
    us = {(row["what"], row["contender"]): row["us"] for row in measured if row["suite"] in MODELS}
    return {
        what: us[what, "torch_compile"] / time
        for (what, name), time in us.items()
        if name == "cutegemm_compile" and (what, "torch_compile") in us
    }


def host_rows(what: str, measured: dict[str, Measurement], baseline: str) -> list[Row]:
    """Rows of suite "host": `what` is the thing timed on the CPU."""
    rows = compare(measured, baseline)
    return [{field: (row | {"suite": "host", "what": what})[field] for field in HOST_FIELDS} for row in rows]


def refused_row(key: Row, why: str) -> Row:
    """The row of a contender without times, of its key fields."""
    return dict.fromkeys(FIELDS.get(str(key["suite"]), PEER_FIELDS)) | key | {"refused": why}


def key(row: Row) -> tuple[Any, ...]:
    """What makes a row that row; two rows of one key are two measurements of one thing."""
    return tuple(row.get(field) for field in KEY_FIELDS)


class Results:
    """A results file that grows.

    Attributes:
        path: of the file.
        environment: of the first run that wrote it.
        rows: all rows, in the order they were measured.
        dropped: rows of an earlier file that another environment or other sources made obsolete.
    """

    def __init__(self, path: Path, environment: dict[str, Any]) -> None:
        self.path = path
        self.environment = environment
        self.rows: list[Row] = []
        self.dropped = 0
        if not path.exists():
            return
        found = load(path)
        if differences(found["environment"], environment):
            self.dropped = len(found["rows"])
            return
        self.rows = found["rows"]
        dates = [*found["environment"].get("resumed", []), environment["date"]]
        self.environment = found["environment"] | {"resumed": dates}

    def has(self, rows: Iterable[Row]) -> bool:
        """Whether every one of these rows (only their key fields matter) has been measured."""
        present = {key(row) for row in self.rows}
        return all(key(row) in present for row in rows)

    def put(self, rows: list[Row]) -> None:
        """Add rows, replacing those of equal key, and write the file.

        Raises:
            ValueError: a row lacks a field of the schema or has one beside it.
        """
        for row in rows:
            usual = PEER_FIELDS if "refused" in row else ROW_FIELDS
            expected = SWEEP_FIELDS if "spec" in row else FIELDS.get(str(row.get("suite")), usual)
            if odd := set(expected) ^ set(row):
                raise ValueError(f"row fields {sorted(odd)}: must be exactly those of schema {SCHEMA}")
        new = {key(row) for row in rows}
        self.rows = [row for row in self.rows if key(row) not in new] + rows
        save(self.path, {"schema": SCHEMA, "environment": self.environment, "rows": self.rows})


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Fields in which two environments differ so that their rows may not stand in one file."""
    return [field for field in SAME_ENVIRONMENT if first.get(field) != second.get(field)]


def load(path: Path) -> dict[str, Any]:
    """Read a results file.

    Raises:
        ValueError: the file has another schema.
    """
    document = json.loads(path.read_text())
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema {document.get('schema')!r} must be {SCHEMA}; measure it again")
    return dict(document)


def save(path: Path, document: dict[str, Any]) -> None:
    """Write a results file whole or not at all, one row a line so that differences read well."""
    head = json.dumps({name: document[name] for name in ("schema", "environment")}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in document["rows"])
    text = f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    os.replace(part, path)


def merge(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """One document from several of one environment; of two rows with equal key the later document's stays.

    Raises:
        ValueError: the environments differ in a field that matters.
    """
    first = documents[0]["environment"]
    rows: dict[tuple[Any, ...], Row] = {}
    for document in documents:
        if fields := differences(first, document["environment"]):
            other = document["environment"]
            values = ", ".join(f"{field}: {first.get(field)!r} and {other.get(field)!r}" for field in fields)
            raise ValueError(f"environments differ ({values}): rows of one file must share them")
        rows |= {key(row): row for row in document["rows"]}
    environments = [document["environment"] for document in documents]
    dates = sorted({date for e in environments for date in (e["date"], *e.get("resumed", []))})
    environment = first | {"date": dates[0]} | ({"resumed": dates[1:]} if dates[1:] else {})
    return {"schema": SCHEMA, "environment": environment, "rows": list(rows.values())}


def geometric_mean(values: Iterable[float]) -> float:
    """The n-th root of the product of positive numbers, the mean that suits ratios."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def summary(rows: Iterable[Row]) -> list[Row]:
    """Per suite, dtype, majors, regime and contender: rows, geometric mean, least and greatest ratio.

    A row without a ratio, and the baseline itself, count nowhere.
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    fields = ("suite", "dtype", "majors", "regime", "contender")
    for row in rows:
        if row["ratio"] is not None and row["contender"] != row["baseline"] and row["suite"] not in FIELDS:
            groups.setdefault(tuple(row[field] for field in fields), []).append(row["ratio"])
    return [
        dict(zip(fields, group, strict=True))
        | {
            "rows": len(ratios),
            "geomean": geometric_mean(ratios),
            "least": min(ratios),
            "greatest": max(ratios),
        }
        for group, ratios in groups.items()
    ]


def main(arguments: list[str]) -> None:
    """Merge files into one."""
    parser = command_line.parser("results", __doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", type=Path, nargs="+", help="files of one environment")
    args = parser.parse_args(arguments)
    save(args.out, merge([load(path) for path in args.sources]))


if __name__ == "__main__":
    main(sys.argv[1:])
