# SPDX-License-Identifier: Apache-2.0
"""Tiles of the CUDA-core kernel compared with cuBLAS without tf32: correctness, reproducibility and speed.

    python -m benchmarks.probes.simt_tiles --out FILE [--shapes 1024x1024x1024,64x4096x4096] [--majors kk,kn]

The default is all shapes. Kernels compile in parallel first. Then each problem's tiles, the planner's choice ("plan")
and cuBLAS are timed interleaved. The file is replaced after every problem. Needs a Hopper GPU; `--compile` only
compiles, on any machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import command_line
from benchmarks.fit_cores import name_of
from benchmarks.inputs import InputSet, make_sets, set_count
from benchmarks.results import Case
from benchmarks.timing import Contender, Device, Regime, measure
from cutegemm import GemmSpec, problem
from cutegemm.compiling import kernel_cache
from cutegemm.config import SimtConfig, SimtTile
from cutegemm.errors import GemmError
from cutegemm.gemm import Gemm, representative
from cutegemm.planning import planner, simt_tiles

REGIME = Regime(name="probe", preheat=0.05, rest=0.0, sample=0.008, rounds=6)
SPEC = GemmSpec(a_dtype="fp32")
# the planner's choice, and the baseline
PLAN, BASE = "plan", "cublas"
# bound on an element's error divided by K
ROUNDINGS = 16 * 2.0**-23


def pipelined(m: int, n: int, k: int, **fields: Any) -> SimtTile:
    """A tile loaded by cp.async."""
    return SimtTile(tile=(m, n, k), **fields)


def staged(m: int, n: int, k: int, **fields: Any) -> SimtTile:
    """A tile loaded through registers."""
    return SimtTile(tile=(m, n, k), staged=True, **fields)


def mirrored(x: SimtTile) -> SimtTile:
    """The tile with M and N exchanged."""
    m, n, k = x.tile
    return dataclasses.replace(x, tile=(n, m, k), thread_tile=x.thread_tile[::-1], lanes_m=32 // x.lanes_m)


# 8 x 16 per thread, which allows eight warps per SM
WIDE: dict[str, Any] = {"thread_tile": (8, 16)}
# 4 x 8 per thread, for few rows
FEW: dict[str, Any] = {"thread_tile": (4, 8), "lanes_m": 4}
BIG = [
    *(staged(128, 128, 8, residents=2, ahead=x) for x in (0, 4)),
    *(staged(128, 128, 8, residents=2, ahead=x, **WIDE) for x in (0, 4)),
    staged(128, 128, 8, residents=2, thread_tile=(16, 8), lanes_m=4),
    staged(64, 128, 16, slices=2, residents=2, **WIDE),
    staged(64, 128, 16, slices=2, residents=2, ahead=4),
]
SIXTEEN_ROWS = [
    pipelined(16, 64, 32, slices=4, split=8, stages=4, residents=4, **FEW),
    *(pipelined(16, 64, 32, slices=8, split=2, stages=x, residents=2, **FEW) for x in (4, 6, 8, 10)),
    pipelined(16, 64, 64, slices=16, split=2, stages=6, **FEW),
    pipelined(16, 64, 32, slices=8, split=4, stages=6, residents=2, **FEW),
]
# 28 x 4 per thread; four lanes cover 112 rows
TALL: dict[str, Any] = {"thread_tile": (28, 4), "lanes_m": 4}
ROWS: dict[str, Any] = {"thread_tile": (16, 8), "lanes_m": 4}
ODD = [
    staged(128, 128, 8, residents=2, split=2, **ROWS),
    staged(128, 128, 16, slices=2, **ROWS),
    staged(112, 128, 8, residents=2, split=2, **TALL),
    staged(112, 128, 8, residents=2, split=2, thread_tile=(14, 8)),
    staged(112, 128, 16, residents=2, split=2, thread_tile=(14, 8)),
    staged(112, 128, 16, slices=2, thread_tile=(14, 8)),
    staged(112, 128, 32, slices=2, thread_tile=(14, 8)),
]
SHAPES: dict[tuple[int, int, int], list[SimtTile]] = {
    (1024, 1024, 1024): [
        *(staged(64, 64, 16, slices=4, residents=2, ahead=x) for x in (0, 2, 4, 8)),
        *(staged(64, 64, 32, slices=4, residents=2, ahead=x) for x in (0, 3)),
        staged(64, 64, 16, slices=4, residents=2, ahead=4, **WIDE),
        staged(64, 128, 32, slices=4, ahead=4),
        staged(64, 128, 16, slices=2, split=2, residents=2, ahead=4),
        staged(128, 128, 16, slices=2, split=2, ahead=4),
        pipelined(64, 64, 16, slices=4, residents=2, stages=6),
        pipelined(64, 64, 32, slices=4, residents=2, stages=4),
    ],
    (64, 4096, 4096): [
        *(staged(64, 64, 32, slices=8, split=2, ahead=x) for x in (0, 2, 4, 8)),
        staged(64, 64, 32, slices=8, split=2, ahead=4, **WIDE),
        *(staged(64, 32, 32, slices=8, split=2, residents=2, ahead=x) for x in (0, 4)),
        staged(64, 32, 64, slices=16, ahead=4),
        staged(64, 64, 16, slices=4, split=2, residents=2, ahead=4),
        pipelined(64, 64, 32, slices=8, split=2, stages=6),
    ],
    (512, 512, 512): [
        *(staged(64, 64, 32, slices=8, split=2, ahead=x) for x in (0, 2, 4)),
        staged(64, 32, 64, slices=16, ahead=4),
        staged(64, 32, 32, slices=8, split=2, residents=2, ahead=4),
        staged(64, 64, 16, slices=4, split=2, residents=2, ahead=4),
        pipelined(64, 64, 32, slices=8, split=2, stages=4),
    ],
    (333, 5025, 1023): ODD,
    (1023, 1023, 1023): [
        *ODD,
        staged(64, 128, 16, slices=2, residents=2),
        staged(64, 128, 32, slices=4),
        staged(64, 64, 16, slices=4, residents=2),
        staged(64, 64, 32, slices=4),
    ],
    (768, 768, 768): [
        staged(128, 128, 8, residents=2, split=8, **ROWS),
        staged(64, 128, 16, slices=2, split=4, residents=2),
        staged(64, 128, 16, slices=2, split=2, residents=2),
        staged(64, 64, 32, slices=8, split=2, ahead=4, **WIDE),
        staged(64, 64, 32, slices=8, ahead=4, **WIDE),
        staged(64, 64, 16, slices=4, split=2, residents=2),
        staged(64, 32, 64, slices=16, ahead=4),
    ],
    (3000, 3000, 3000): [
        staged(128, 128, 8, residents=2, **ROWS),
        staged(64, 128, 16, slices=2, residents=2),
        staged(64, 64, 32, slices=8, ahead=4, **WIDE),
        staged(64, 64, 16, slices=4, residents=2),
    ],
    (17, 8191, 4099): [
        pipelined(16, 64, 32, slices=8, stages=6, residents=2, **FEW),
        pipelined(16, 64, 32, slices=8, stages=6, split=2, residents=2, **FEW),
        staged(64, 64, 32, slices=8, ahead=4, **WIDE),
        staged(64, 64, 32, slices=8),
        staged(64, 32, 64, slices=16, ahead=4),
    ],
    (16, 4096, 4096): SIXTEEN_ROWS,
    (4096, 16, 4096): [mirrored(x) for x in SIXTEEN_ROWS],
    (2048, 2048, 2048): BIG,
    (4096, 4096, 4096): BIG,
}


@contextlib.contextmanager
def chosen(tile: SimtTile | None) -> Iterator[None]:
    """Within the context the planner chooses `tile` for CUDA-core problems; None keeps its own choice."""
    original = simt_tiles.choose
    # cached plans do not depend on the tile
    planner._planned.cache_clear()
    if tile is not None:
        simt_tiles.choose = lambda *_, **__: tile
    try:
        yield
    finally:
        simt_tiles.choose = original
        planner._planned.cache_clear()


def configs_of(case: Case, tiles: list[SimtTile]) -> dict[str, SimtConfig]:
    """The configs of a problem by name."""
    found = {}
    posed = problem(case.m, case.n, case.k, dtype="fp32", majors=case.majors)
    for name, tile in named(tiles).items():
        with chosen(tile):
            found[name] = planner.plan(SPEC, posed).config
    return found


def named(tiles: list[SimtTile]) -> dict[str, SimtTile | None]:
    """The contenders beside cuBLAS."""
    return {PLAN: None, **{name_of(x): x for x in tiles}}


def contender(name: str, tile: SimtTile | None, first: InputSet, exact: torch.Tensor) -> Contender:
    """The contender of a tile, checked for correctness and equal bits in two runs.

    Raises:
        GemmError: a check fails, or the tile does not compile.
    """
    with chosen(tile):
        # the first call fixes the plan
        gemm = Gemm(SPEC, representative(SPEC))
        one = gemm.run(first.a, first.b, out=torch.empty_like(first.out))
    two = gemm.run(first.a, first.b, out=torch.empty_like(first.out))
    # a sum of k random products grows as sqrt(k), and so does its rounding error
    worst = (one.double() - exact).abs().max().item() / first.a.shape[1]
    if not worst <= ROUNDINGS:
        raise GemmError(f"wrong by {worst:.2e} of k")
    if not torch.equal(one, two):
        raise GemmError("not equal from run to run")
    return Contender(name, lambda x: gemm.run(x.a, x.b, out=x.out))


def timed(case: Case, tiles: list[SimtTile]) -> dict[str, Any]:
    """One problem: microseconds and ratio of every contender, and errors."""
    sets = make_sets(case, "cuda", set_count(case))
    exact = sets[0].a.double() @ sets[0].b.double()
    found, failed = [Contender(BASE, lambda x: torch.mm(x.a, x.b, out=x.out))], {}
    for name, tile in named(tiles).items():
        try:
            found.append(contender(name, tile, sets[0], exact))
        except GemmError as error:
            failed[name] = str(error)[:300]
    times = measure(found, sets, REGIME, device=Device())
    base = times[BASE]
    rows = {}
    for name, x in times.items():
        ratio = statistics.median(b / own for b, own in zip(base.samples, x.samples, strict=True))
        rows[name] = {"us": round(x.us, 2), "ratio": round(ratio, 4)}
    tflops = {"cublas_tflops": round(case.flops / base.us / 1e6, 2)}
    ranked = dict(sorted(rows.items(), key=lambda row: row[1]["us"]))
    return {
        "shape": f"{case.m}x{case.n}x{case.k}",
        "majors": case.majors,
        **tflops,
        "rows": ranked,
        "failed": failed,
    }


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.parser("probes.simt_tiles", __doc__)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--shapes", help="MxNxK of the table, comma-separated")
    parser.add_argument("--majors", default="kk", help="of A and B, comma-separated")
    parser.add_argument("--compile", action="store_true", help="compile and time nothing")
    return parser.parse_args()


def main() -> None:
    """Compile all, then measure row by row."""
    args = arguments()
    began = time.time()
    wanted = {"x".join(map(str, shape)): shape for shape in SHAPES}
    shapes = [wanted[x] for x in (args.shapes.split(",") if args.shapes else wanted)]
    todo = [
        (Case(suite="fp32", dtype="fp32", majors=majors, m=m, n=n, k=k), SHAPES[m, n, k])
        for majors in args.majors.split(",")
        for m, n, k in shapes
    ]
    configs = {id(case): configs_of(case, tiles) for case, tiles in todo}
    try:
        kernel_cache.ensure(list(dict.fromkeys(x for of in configs.values() for x in of.values())))
    except GemmError as error:
        print("compile:", str(error)[:300])
    print(f"compiled after {time.time() - began:.0f} s", flush=True)
    if args.compile:
        for case, tiles in todo:
            for name in named(tiles):
                print(case, name, kernel_cache.artifact(configs[id(case)][name]).resources)
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    results = []
    for case, tiles in todo:
        results.append(timed(case, tiles))
        print(json.dumps(results[-1]), flush=True)
        made = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "problems": results}
        if args.out:
            args.out.write_text(json.dumps(made, indent=1) + "\n")
        torch.cuda.empty_cache()
    print(f"done after {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
