# SPDX-License-Identifier: Apache-2.0
"""Candidate tiles of the CUDA-core kernel against cuBLAS without tf32: right, equal from run to run, and how fast.

    python -m benchmarks.probes.simt_tiles [SHAPE GROUP ...]

Groups: small, large, few, odd; all without arguments. A row is one problem; a column one tile, as cuBLAS time over
its time. Needs a Hopper GPU.
"""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.inputs import InputSet, make_sets, set_count
from benchmarks.results import Case
from benchmarks.timing import Contender, Device, Regime, measure
from cutegemm import GemmSpec, problem
from cutegemm.compiling import cache
from cutegemm.config import SimtTile
from cutegemm.errors import GemmError
from cutegemm.gemm import Gemm, representative
from cutegemm.planning import planner
from cutegemm.planning import simt as planning

REGIME = Regime(name="probe", preheat=0.05, rest=0.0, sample=0.01, rounds=5)


def square(m: int, n: int, split: int = 1, **fields: object) -> tuple[str, SimtTile]:
    """A named tile of 8 x 8 accumulators a thread."""
    made = SimtTile(**({"tile": (m, n, 16), "split": split} | fields))
    own = made.thread_tile
    extra = "".join(
        f" {name[:2]}{getattr(made, name)}"
        for name in ("slices", "split", "stages", "unroll", "residents")
        if getattr(made, name) != SimtTile.__dataclass_fields__[name].default
    )
    return f"{m}x{n}x{made.tile[2]}/{own[0]}x{own[1]}{extra}", made


def wide(m: int, n: int, **fields: object) -> tuple[str, SimtTile]:
    """A named tile of 16 x 8 accumulators a thread."""
    return square(m, n, **({"thread_tile": (16, 8), "lanes_m": 4} | fields))


def staged(m: int, n: int, split: int = 1, **fields: object) -> tuple[str, SimtTile]:
    """A named tile that comes through registers."""
    name, made = square(m, n, split, **({"tile": (m, n, 8), "staged": True} | fields))
    return f"S {name}", made


LARGE = [
    staged(128, 128, residents=2),
    staged(64, 128, residents=3),
    staged(128, 64, residents=3),
    staged(64, 128, residents=4),
    staged(128, 128, residents=2, thread_tile=(16, 8), lanes_m=4),
    staged(128, 128, residents=2, thread_tile=(8, 16)),
    staged(256, 128, residents=1, thread_tile=(16, 8), lanes_m=4),
    wide(128, 128, residents=2),
    staged(128, 128, residents=2, tile=(128, 128, 16)),
]
SMALL = [
    square(64, 64, 2, slices=2, residents=3),
    square(64, 64, 2, slices=4, residents=2),
    *(staged(64, 64, x, residents=6) for x in (2, 4, 8)),
    *(staged(64, 128, x, residents=3) for x in (2, 4, 8)),
    *(staged(64, 64, x, residents=6, tile=(64, 64, 16)) for x in (4, 8)),
]
MIDDLE = [
    square(64, 128, 2, residents=3),
    square(64, 64, 1, slices=2, residents=3),
    staged(128, 128, residents=2),
    staged(128, 128, 2, residents=2),
    *(staged(64, 128, x, residents=3) for x in (1, 2, 4)),
    *(staged(64, 64, x, residents=6) for x in (1, 2, 4)),
    staged(64, 128, 1, residents=4),
]


def few_rows(m: int) -> list[tuple[str, SimtTile]]:
    """Tiles for up to `m` rows, 16 or 64."""
    if m == 64:
        return [
            *(staged(64, 64, x, residents=6) for x in (2, 4, 8)),
            *(staged(64, 128, x, residents=3) for x in (4, 8)),
            staged(64, 64, 8, residents=6, tile=(64, 64, 16)),
            staged(64, 64, 8, residents=4),
            square(64, 64, 8, residents=6),
            square(32, 128, 8, tile=(32, 128, 16), lanes_m=4, slices=2, residents=3),
        ]
    few = {"thread_tile": (4, 8), "lanes_m": 4, "stages": 4}
    return [
        square(16, 64, 8, tile=(16, 64, 32), slices=4, residents=4, **few),
        square(16, 64, 8, tile=(16, 64, 32), slices=2, residents=6, **few),
        square(
            16, 128, 8, tile=(16, 128, 32), slices=4, residents=3, thread_tile=(8, 8), lanes_m=2, stages=4
        ),
    ]


def mirrored(tiles: list[tuple[str, SimtTile]]) -> list[tuple[str, SimtTile]]:
    """The same for few columns."""
    found = []
    for _, x in tiles:
        m, n, k = x.tile
        fields = {
            "tile": (n, m, k),
            "thread_tile": x.thread_tile[::-1],
            "lanes_m": 32 // x.lanes_m,
            "slices": x.slices,
            "stages": x.stages,
            "residents": x.residents,
        }
        found.append(square(n, m, x.split, **fields))
    return found


GROUPS = {
    "small": [(512, 512, 512, SMALL), (1024, 1024, 1024, MIDDLE)],
    "large": [
        (2048, 2048, 2048, [*MIDDLE[2:5], *MIDDLE[7:8], *LARGE[3:6]]),
        (4096, 4096, 4096, LARGE),
        (8192, 8192, 8192, LARGE[:6]),
    ],
    "few": [
        (16, 4096, 4096, few_rows(16)),
        (64, 4096, 4096, few_rows(64)),
        (4096, 16, 4096, mirrored(few_rows(16))),
    ],
    "odd": [(333, 5025, 1023, MIDDLE)],
}


def gemm_of(tile: SimtTile, solved, element_copies: bool) -> tuple[Gemm, object]:
    """A Gemm that takes `tile`, and its kernel's config; the choice is patched, since no field of the spec makes it."""
    planning.simt_tiles.choose = lambda *_, **__: tile
    original = planning.vector_elements
    if element_copies:
        planning.vector_elements = lambda x, widths, gate=None: (
            1 if 2 in widths else original(x, widths, gate)
        )
    try:
        gemm = Gemm(GemmSpec(a_dtype="fp32"), representative(GemmSpec(a_dtype="fp32")))
        return gemm, planner.plan(gemm.spec, solved).config
    finally:
        planning.vector_elements = original


def prepare(case: Case, tiles: list[tuple[str, SimtTile]]) -> list[tuple[str, SimtTile, bool]]:
    """Compile every candidate; adds the first ones with copies of single elements where both operands are K-major."""
    todo = [(name, tile, False) for name, tile in tiles]
    if case.majors == "kk" and case.k % 4 == 0:
        todo += [(f"{name} el", tile, True) for name, tile in tiles[:2] if not tile.staged]
    solved = problem(case.m, case.n, case.k, dtype="fp32", majors=case.majors)
    return [(*x, gemm_of(x[1], solved, x[2])[1]) for x in todo]


def contenders(case: Case, prepared, sets: list[InputSet]) -> list[Contender]:
    """cuBLAS and every candidate that is right and repeats itself."""
    first = sets[0]
    exact = first.a.double() @ first.b.double()
    scale = case.k**0.5 * 2.0**-23 * 16
    solved = problem(case.m, case.n, case.k, dtype="fp32", majors=case.majors)
    found = [Contender("cublas", lambda x: torch.mm(x.a, x.b, out=x.out))]
    for name, tile, single, _ in prepared:
        try:
            gemm, _ = gemm_of(tile, solved, single)
            original = planning.vector_elements
            if single:
                planning.vector_elements = lambda x, w, gate=None, o=original: 1 if 2 in w else o(x, w, gate)
            try:
                one = gemm.run(first.a, first.b, out=torch.empty_like(first.out)).clone()
            finally:
                planning.vector_elements = original
            two = gemm.run(first.a, first.b, out=torch.empty_like(first.out))
        except GemmError as error:
            print(f"   {case} {name}: {str(error)[:160]}")
            continue
        worst = (one.double() - exact).abs().max().item() / (case.k**0.5)
        if worst > scale or not torch.equal(one, two):
            print(f"   {case} {name}: WRONG, error {worst:.2e} of sqrt(k), repeats {torch.equal(one, two)}")
            continue
        found.append(Contender(name, lambda x, g=gemm: g.run(x.a, x.b, out=x.out)))
    return found


def main(groups: list[str]) -> None:
    """Compile all, then measure row by row."""
    torch.backends.cuda.matmul.allow_tf32 = False
    began = time.time()
    cases = [
        (Case(suite=group, dtype="fp32", majors=majors, m=m, n=n, k=k), tiles)
        for group in groups or GROUPS
        for m, n, k, tiles in GROUPS[group]
        for majors in ("kk", "kn")
    ]
    prepared = [prepare(*x) for x in cases]
    try:
        cache.ensure(list(dict.fromkeys(x[3] for row in prepared for x in row)))
    except GemmError as error:
        print("compile:", str(error)[:300])
    print(f"compiled after {time.time() - began:.0f} s")
    for (case, _), row in zip(cases, prepared, strict=True):
        sets = make_sets(case, "cuda", set_count(case))
        times = measure(contenders(case, row, sets), sets, REGIME, device=Device())
        base = times["cublas"].us
        tflops = 2 * case.m * case.n * case.k / base / 1e6
        print(f"{case.m}x{case.n}x{case.k} {case.majors}: cublas {base:.1f} us, {tflops:.1f} TFLOP/s")
        ranked = sorted(
            ((base / x.us, name, x.us) for name, x in times.items() if name != "cublas"), reverse=True
        )
        print("   " + " | ".join(f"{ratio:.3f} {name} ({us:.1f})" for ratio, name, us in ranked), flush=True)
        del sets
        torch.cuda.empty_cache()
    print(f"done after {time.time() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
