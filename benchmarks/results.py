# SPDX-License-Identifier: Apache-2.0
"""Results files: {schema, environment, rows}. They are written after every problem, so that a run can resume.

python -m benchmarks.results OUT IN...       merge files of one environment into OUT
"""

from __future__ import annotations

import json
import math
import posixpath
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import command_line
from cutegemm import files

SCHEMA = 1
Row = dict[str, Any]

# Parts of a row: the problem, the times of a contender, clock and power meanwhile, the baseline.
CASE_FIELDS = ("suite", "dtype", "majors", "m", "n", "k", "batch", "epilogue", "beta")
TIMES = ("us", "us_min", "us_max", "rounds")
REGIME = ("regime", "sm_mhz", "watts")
BASELINE = ("baseline", "baseline_us", "ratio")

ROW_FIELDS = (
    *CASE_FIELDS, "contender", "plan", *TIMES, *REGIME, "tflops", "tflop_per_j", *BASELINE, "samples",
)  # fmt: skip
# Sweeps: the fields of the spec, and the reason for missing times.
SWEEP_FIELDS = (*ROW_FIELDS, "spec", "refused")
# Other libraries: the reason for missing times.
PEER_FIELDS = (*ROW_FIELDS, "refused")
# Chains of layers: times per layer, `what` is N x K of the layers, `bytes` those of a layer's weights.
CHAIN_FIELDS = (
    "suite", "what", "dtype", "m", "layers", "bytes", "contender", "plan", *TIMES, *REGIME,
    "gb_s", "roof_gb_s", "of_roof", *BASELINE, "samples",
)  # fmt: skip
HOST_FIELDS = ("suite", "what", "contender", *TIMES, *BASELINE)
# Models: `what` is model and work, m the tokens per call, peak_mib the memory that a call adds.
LLAMA_FIELDS = (
    "suite", "what", "dtype", "m", "contender", *TIMES, *REGIME, "tokens_s", "peak_mib", *BASELINE, "samples",
)  # fmt: skip
# Functions and modules: `what` is the work; a contender that raised has its error and no times.
PYTORCH_FIELDS = (
    "suite", "what", "contender", *TIMES, *REGIME, "peak_mib", *BASELINE, "samples", "error",
)  # fmt: skip
# Groups: `what` is kind, layer, tokens and spread; `roof_us` is the time to read and write all data once.
GROUPED_FIELDS = (
    "suite", "what", "kind", "layer", "tokens", "spread", "contender", "plan", *TIMES, *REGIME, "roof_us", *BASELINE,
    "samples", "refused",
)  # fmt: skip
# Quantization: `what` is the kind of scales of x of M x K; `of_copy` is its bandwidth over that of a copy.
QUANTIZE_FIELDS = (
    "suite", "what", "m", "k", "contender", *TIMES, *REGIME, "of_copy", *BASELINE, "samples",
)  # fmt: skip
# Probes of operand types: `what` is kind and suite, `error` that of the first rows against fp64.
PROBE_FIELDS = (*PEER_FIELDS, "what", "error")
# suites whose rows are not single GEMMs compared with cuBLAS
FIELDS = {
    "probe": PROBE_FIELDS,
    "host": HOST_FIELDS,
    "chain": CHAIN_FIELDS,
    "fresh_chain": (*CHAIN_FIELDS, "refused"),
    "llama": LLAMA_FIELDS,
    "models": LLAMA_FIELDS,
    "pytorch": PYTORCH_FIELDS,
    "grouped": GROUPED_FIELDS,
    "quantize": QUANTIZE_FIELDS,
}
MODELS = ("llama", "models")
KEY_FIELDS = (*CASE_FIELDS, "what", "contender", "regime")

# Fields that must agree within a file. Date, temperature and initial clocks may differ.
SAME_ENVIRONMENT = ("gpu", "sms", "driver", "cuda", "torch", "dsl", "python", "power_limit_watts", "sources")


def size_text(batch: int, m: int, n: int, k: int) -> str:
    """The extents of a problem in one word."""
    return f"{m}x{n}x{k}" if batch == 1 else f"{batch}:{m}x{n}x{k}"


def size_of(row: Row) -> str:
    """The extents of a row's problem in one word."""
    return size_text(row["batch"], row["m"], row["n"], row["k"])


def ratio_text(row: Row) -> str:
    """A row's ratio to its baseline as the end of a line; nothing for a row without one."""
    return "" if row["ratio"] is None else f" | x {row['baseline']} {row['ratio']:.3f}"


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
        """Floating-point operations of the GEMM: multiplications plus additions."""
        return 2 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        return f"{self.suite} {self.size} {self.dtype} {self.majors}"

    @property
    def size(self) -> str:
        """M x N x K, preceded by the batch size if there is a batch."""
        return size_text(self.batch, self.m, self.n, self.k)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Times of one contender in microseconds per call, with the clock and power while it ran.

    `samples` has one time per round, so samples of contenders that were measured together can be paired.
    """

    us: float
    us_min: float
    us_max: float
    rounds: int
    sm_mhz: float | None = None
    watts: float | None = None
    samples: tuple[float, ...] = ()

    def divided(self, count: int) -> Measurement:
        """The time of one of `count` equal parts of each call."""
        return replace(
            self,
            us=self.us / count,
            us_min=self.us_min / count,
            us_max=self.us_max / count,
            samples=tuple(us / count for us in self.samples),
        )


def compare(measured: dict[str, Measurement], baseline: str) -> list[Row]:
    """For each contender a part of its row: times, clock and power, samples, and the baseline's time."""
    base = measured[baseline].us if baseline in measured else None
    rows = []
    for name, m in measured.items():
        numbers = {"contender": name} | asdict(m) | {"samples": list(m.samples)}
        reference = {"baseline": None if base is None else baseline, "baseline_us": base}
        rows.append(numbers | reference | {"ratio": None if base is None else base / m.us})
    return rows


def case_rows(
    case: Case, measured: dict[str, Measurement], *, plans: dict[str, str | None], regime: str, baseline: str
) -> list[Row]:
    """Rows of one problem whose contenders were measured together."""
    rows = []
    for row in compare(measured, baseline):
        m = measured[row["contender"]]
        tflops = case.flops / m.us / 1e6
        row |= asdict(case) | {"plan": plans.get(row["contender"]), "regime": regime}
        row |= {"tflops": tflops, "tflop_per_j": tflops / m.watts if m.watts else None}
        rows.append({field: row[field] for field in ROW_FIELDS})
    return rows


def compiled_ratios(measured: Iterable[Row]) -> dict[tuple[str, str, str], float]:
    """Speed-up of the converted model over the original, both compiled, by scenario, regime and mode of compiling."""
    us = {
        (row["what"], row["regime"], row["contender"]): row["us"]
        for row in measured
        if row["suite"] in MODELS
    }
    return {
        (what, regime, mode): us[what, regime, f"torch_{mode}"] / time
        for (what, regime, name), time in us.items()
        for mode in ("compile", "default")
        if name == f"cutegemm_{mode}" and (what, regime, f"torch_{mode}") in us
    }


def host_rows(what: str, measured: dict[str, Measurement], baseline: str) -> list[Row]:
    """Rows of suite "host"; `what` was timed on the CPU."""
    rows = compare(measured, baseline)
    return [{field: (row | {"suite": "host", "what": what})[field] for field in HOST_FIELDS} for row in rows]


def refused_row(key: Row, why: str) -> Row:
    """A row without times, with the reason."""
    return dict.fromkeys(FIELDS.get(str(key["suite"]), PEER_FIELDS)) | key | {"refused": why}


def key(row: Row) -> tuple[Any, ...]:
    """The identity of a row: rows of equal key measured the same thing."""
    return tuple(row.get(field) for field in KEY_FIELDS)


class Results:
    """A results file that is extended row by row.

    Attributes:
        path: of the file.
        environment: of the first run that wrote the file.
        rows: all rows in the order of measurement.
        dropped: number of rows discarded since their environment or sources differ.
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
        """Whether all these rows have been measured; only key fields are compared."""
        present = {key(row) for row in self.rows}
        return all(key(row) in present for row in rows)

    def put(self, rows: list[Row]) -> None:
        """Add rows, replace those of equal key, and write the file.

        Raises:
            ValueError: a row lacks a field of the schema or has an extra one.
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
    """The fields that forbid rows of two environments in one file."""
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


def source(path: str, environment: dict[str, Any], base: str) -> str:
    """A link to a results file from the folder `base`, with its GPU, torch, date and commit."""
    link = posixpath.relpath(path, base) if base else path
    return (
        f"[{Path(path).name}]({link}) ({environment['gpu']}, torch {environment['torch']}, "
        f"{environment['date'][:10]}, commit {environment['commit'][:10]})"
    )


def save(path: Path, document: dict[str, Any]) -> None:
    """Replace a results file, with one row per line for readable diffs."""
    head = json.dumps({name: document[name] for name in ("schema", "environment")}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in document["rows"])
    text = f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text.encode())


def merge(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge documents of one environment. A row of a later document replaces an earlier one of equal key.

    Raises:
        ValueError: the environments differ in a field of `SAME_ENVIRONMENT`.
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
    """The geometric mean of positive numbers."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def summary(rows: Iterable[Row]) -> list[Row]:
    """Per suite, dtype, majors, regime and contender: rows, geometric mean, least and greatest ratio.

    Baseline rows and rows without a ratio are skipped.
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
