# SPDX-License-Identifier: Apache-2.0
"""Compares counts of Nsight Compute on an H200 with those of the emulator's meters.

    python -m benchmarks.emulator_nsight profile --commit HASH      on the GPU: run ncu on every kernel and access
    python -m benchmarks.emulator_nsight table                      anywhere: write both sides into NOTES-emulator.md

`profile` writes benchmarks/results/sweeps/emulator_nsight.json and tests/emulator/fixtures/accesses.npz. Kernels are
those of `emulator_cases.CASES`, accesses those of `emulator_banks.ACCESSES`.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command_line, emulator_banks, environment
from benchmarks.suite_tables import markdown

RESULTS = Path(__file__).parent / "results" / "sweeps" / "emulator_nsight.json"
NOTES = Path(__file__).parent / "NOTES-emulator.md"
MARKERS = ("<!-- nsight:kernels -->", "<!-- /nsight:kernels -->")
FIXTURE = Path(__file__).parent.parent / "tests" / "emulator" / "fixtures" / "accesses.npz"
RUNS = 5  # of each kernel: interference of TMA and tensor cores varies between runs

_PIPE, _SASS = (
    "l1tex__data_pipe_lsu_wavefronts_mem_shared",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared",
)
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_SECTORS, _REQUESTS = "l1tex__t_sectors_pipe_lsu_mem_global", "l1tex__t_requests_pipe_lsu_mem_global"
ACCESS_METRICS = {  # our name -> Nsight Compute's
    "global_load_requests": f"{_REQUESTS}_op_ld.sum",
    "global_load_sectors": f"{_SECTORS}_op_ld.sum",
    "global_store_requests": f"{_REQUESTS}_op_st.sum",
    "global_store_sectors": f"{_SECTORS}_op_st.sum",
    "shared_load_wavefronts": f"{_PIPE}_op_ld.sum",
    "shared_store_wavefronts": f"{_PIPE}_op_st.sum",
    "shared_other_wavefronts": f"{_PIPE}_op_misc.sum",
    "shared_wavefronts": f"{_PIPE}.sum",
    "shared_async_conflicts": f"{_CONFLICTS}_op_ldgsts.sum",
}
KERNEL_METRICS = ACCESS_METRICS | {
    "ffma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "fadd": "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "fmul": "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "shared_load_conflicts": f"{_CONFLICTS}_op_ld.sum",
    "shared_store_conflicts": f"{_CONFLICTS}_op_st.sum",
    "shared_load_wavefronts_by_instruction": f"{_SASS}_op_ld.sum",
    "shared_store_wavefronts_by_instruction": f"{_SASS}_op_st.sum",
    "wgmma_wavefronts": f"{_PIPE}_op_gmma.sum",
    "opcodes": "sass__inst_executed_per_opcode",
}


def launch_kernels() -> None:
    """Launch every case `RUNS` times inside the profiler's window, after a warm-up launch outside."""
    import torch

    from benchmarks.emulator_cases import CASES

    for case in CASES.values():
        call = case.prepared()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        for _ in range(RUNS):
            call()
            torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def launch_accesses() -> None:
    """Launch every pattern of every access once, in order, inside the profiler's window."""
    import torch

    from benchmarks.emulator_record import Module

    torch.zeros(1, device="cuda")
    loaded, data = Module(emulator_banks.module()), np.zeros(emulator_banks.SHARED_BYTES, np.uint8)
    torch.cuda.cudart().cudaProfilerStart()
    for access in emulator_banks.ACCESSES.values():
        for offsets in emulator_banks.patterns(access):
            loaded.launch(access.name, 1, 32, [np.zeros(32, np.uint32), offsets, data])
    torch.cuda.cudart().cudaProfilerStop()


def ncu(what: str, metrics: dict[str, str]) -> list[dict[str, str]]:
    """Run `launch_kernels` or `launch_accesses` under Nsight Compute; the metrics of each launch as text."""
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
               "--print-units", "base", "--print-metric-instances", "details", "--metrics", ",".join(metrics.values()),
               sys.executable, "-m", "benchmarks.emulator_nsight", what]  # fmt: skip
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = csv.DictReader(io.StringIO(text[text.index('"ID"') :]))
    # a row without an ID has units
    return [{k: row[v] for k, v in metrics.items()} for row in rows if row["ID"]]


def opcodes(text: str) -> dict[str, int]:
    """The instances of a metric per opcode: "12 (FFMA: 8; LDS: 4)" -> {"FFMA": 8, "LDS": 4}."""
    return {name: int(count.replace(",", "")) for name, count in re.findall(r"([A-Z][\w.]*): ([\d,]+)", text)}


def number(text: str) -> int:
    """A count as ncu prints it."""
    return round(float(text.replace(",", "")))


def profile(out: Path, fixture: Path, commit: str) -> None:
    """Write both profiles."""
    from benchmarks.emulator_cases import CASES, keep

    rows = ncu("kernels", KERNEL_METRICS)
    kernels = {}
    for i, name in enumerate(CASES):
        runs = rows[i * RUNS : (i + 1) * RUNS]
        each = {m: [number(run[m]) for run in runs] for m in KERNEL_METRICS if m != "opcodes"}
        counts = {m: v[0] if len(set(v)) == 1 else v for m, v in each.items()}
        kernels[name] = {**counts, "opcodes": opcodes(runs[0]["opcodes"])}
    rows = ncu("accesses", ACCESS_METRICS)
    columns: dict[str, Any] = {name: [number(row[name]) for row in rows] for name in ACCESS_METRICS}
    np.savez_compressed(fixture, **columns)
    keep(fixture.parent / "kernels.json.xz")
    record = {
        "environment": environment.record(commit, environment.sensors()),
        "runs": RUNS,
        "kernels": kernels,
    }
    out.write_text(json.dumps(record, indent=1) + "\n")


EXACT = ("ffma", "fmul", "fadd", "hgmma", "hmma", "global_load_requests", "global_load_sectors",
         "global_store_requests", "global_store_sectors", "wgmma_wavefronts")  # fmt: skip
WAVEFRONTS = ("shared_load_wavefronts", "shared_store_wavefronts")
TOLERANCE = 0.02  # relative, of wavefronts


def hardware(counts: dict[str, Any]) -> dict[str, int]:
    """The GPU's counts under the names above; wavefronts are those of the least disturbed run.

    If every access of a kind is an LDS or STS, the counter per instruction is used, which excludes interference of TMA
    and tensor cores. That counter does not count LDSM and STSM.
    """
    out = {name: counts[name] for name in EXACT if name in counts}
    for unit in ("hgmma", "hmma"):
        out[unit] = sum(n for op, n in counts["opcodes"].items() if op.split(".")[0] == unit.upper())
    for name in WAVEFRONTS:
        runs = counts[name] if isinstance(counts[name], list) else [counts[name]]
        matrix = "LDSM" if "load" in name else "STSM"
        by_instruction = counts[f"{name}_by_instruction"]
        out[name] = min(runs) if matrix in counts["opcodes"] or not by_instruction else by_instruction
    return out


def emulator(reports: Sequence[Any]) -> dict[str, int]:
    """The emulator's counts under the same names."""
    out = dict.fromkeys((*EXACT, *WAVEFRONTS), 0)
    ours = {
        "ffma": "fma_f32",
        "fmul": "mul_f32",
        "fadd": "add_f32",
        "wgmma_wavefronts": "wgmma_shared_wavefronts",
    }
    products = {"wgmma.mma_async": ("hgmma", 1), "mma.sync": ("hmma", 1), "wmma.mma": ("hmma", 2)}
    for report in reports:
        for name in out:
            out[name] += int(report.counters.get(ours.get(name, name), 0))
        for op, n in report.instructions.items():
            for start, (name, each) in products.items():
                out[name] += each * n if op.startswith(start) else 0
    return out


def disagreements(gpu: dict[str, int], ours: dict[str, int]) -> list[str]:
    """The counts that differ by more than their tolerance."""
    wrong = [f"{x}: {gpu[x]} on the GPU, {ours[x]} emulated" for x in EXACT if gpu[x] != ours[x]]
    for x in WAVEFRONTS:
        if abs(gpu[x] - ours[x]) > TOLERANCE * gpu[x]:
            wrong.append(f"{x}: {gpu[x]} on the GPU, {ours[x]} emulated")
    return wrong


def emulated(name: str, steps: dict[str, Any]) -> dict[str, int]:
    """The emulator's counts of a stored case."""
    from benchmarks.emulator_cases import CASES
    from cutegemm.emulator import Options

    return emulator(CASES[name].emulate(steps[name], Options(meter=True))[1])


def table(kernels: dict[str, dict[str, Any]], ours: dict[str, dict[str, int]]) -> list[str]:
    """Both sides of every kernel as Markdown; equal counts appear once."""
    names = {
        "ffma": "FFMA, lanes",
        "products": "HGMMA and HMMA, warps",
        "global_load_sectors": "global sectors read",
        "global_store_sectors": "written",
        "shared_load_wavefronts": "shared wavefronts of loads",
        "shared_store_wavefronts": "of stores",
    }
    lines = []
    for kernel, counts in kernels.items():
        sides = [
            dict(side, products=side["hgmma"] + side["hmma"]) for side in (hardware(counts), ours[kernel])
        ]
        pairs = [[side[x] for side in sides] for x in names]
        cells = [f"{gpu:,}" if gpu == own else f"{gpu:,}, emulated {own:,}" for gpu, own in pairs]
        lines.append([kernel, *cells])
    return markdown(["kernel", *names.values()], lines)


def write_table(notes: Path, kernels: dict[str, dict[str, Any]], steps: dict[str, Any]) -> None:
    """Replace the table between the markers of the notes."""
    opening, closing = MARKERS
    before, rest = notes.read_text().split(opening)
    rows = "\n".join(table(kernels, {name: emulated(name, steps) for name in kernels}))
    notes.write_text(f"{before}{opening}\n{rows}\n{closing}{rest.split(closing)[1]}")


def main() -> None:
    """See the module's docstring."""
    parser = command_line.parser("emulator_nsight", __doc__)
    parser.add_argument("mode", choices=("profile", "kernels", "accesses", "table"))
    parser.add_argument("--commit", default="", help="hash of the commit that is profiled")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--fixture", type=Path, default=FIXTURE)
    args = parser.parse_args()
    if args.mode == "profile":
        profile(args.out, args.fixture, args.commit)
    elif args.mode == "table":
        from benchmarks.emulator_cases import kept

        write_table(
            NOTES, json.loads(args.out.read_text())["kernels"], kept(args.fixture.parent / "kernels.json.xz")
        )
    else:
        {"kernels": launch_kernels, "accesses": launch_accesses}[args.mode]()


if __name__ == "__main__":
    main()
