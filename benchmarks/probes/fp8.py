# SPDX-License-Identifier: Apache-2.0
"""fp8 products beside torch's, with every kind of scale that both have, and our own bf16.

    python -m benchmarks.probes.fp8 [--suites square,prefill,decode] [--kinds tensor,row,block,blocks] [--regime short]

A K-major and B K-major (TN), D in bf16, normally distributed elements. Contenders of one problem and kind are timed in
turn, by graph replay, over input sets that together exceed L2, after a check against fp64. `--promote 128,512` times
ours once for each value and prints its error. Prints microseconds, and at the end the geometric mean and the least of
torch's time over ours for every kind and suite; needs a Hopper GPU.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from benchmarks import timing
from benchmarks.suites import SUITES
from benchmarks.timing import Contender
from cutegemm import Gemm, GemmSpec

E4M3 = torch.float8_e4m3fn
L2_BYTES = 50 << 20
BLOCK = 128
# rows of A whose product is compared with fp64
CHECKED_ROWS = 128
SHAPES = {
    "square": [(n, n, n) for n in (1024, 2048, 4096, 8192)],
    "prefill": [
        (4096, 6144, 4096),
        (4096, 4096, 14336),
        (4096, 28672, 8192),
        (4096, 7168, 16384),
        (2048, 2112, 7168),
    ],
    "decode": [(m, n, k) for m in (1, 16, 64) for n, k in ((4096, 4096), (7168, 7168), (8192, 28672))],
}
# kind -> extents of the blocks of A and of B along their free axis and K; 0 is all of it
KINDS = {
    "tensor": ((0, 0), (0, 0)),
    "row": ((1, 0), (1, 0)),
    "block": ((1, BLOCK), (BLOCK, BLOCK)),
    "blocks": ((1, BLOCK), (1, BLOCK)),
}


@dataclass(frozen=True)
class Operands:
    """One input set: fp8 and bf16 matrices, B as N x K, and the scales as (blocks of rows, blocks of K)."""

    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    a16: torch.Tensor
    b16: torch.Tensor


def quantised(x: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in e4m3 and its scales: the largest magnitude of each block over e4m3's largest."""
    rows, depth = (full if size == 0 else size for size, full in zip(block, x.shape))
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % depth, 0, -x.shape[0] % rows))
    tiles = padded.unflatten(1, (-1, depth)).unflatten(0, (-1, rows))  # (blocks, rows, blocks of K, depth)
    scale = tiles.abs().amax((1, 3)).clamp(min=1e-12) / torch.finfo(E4M3).max
    shrunk = (tiles / scale[:, None, :, None]).flatten(2, 3).flatten(0, 1)
    return shrunk[: x.shape[0], : x.shape[1]].to(E4M3).contiguous(), scale


def drawn(shape: tuple[int, int, int], kind: str, seed: int) -> Operands:
    """Normally distributed operands."""
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(seed)
    a16, b16 = (torch.randn(x, k, generator=generator, device="cuda").bfloat16() for x in (m, n))
    a, scale_a = quantised(a16, KINDS[kind][0])
    b, scale_b = quantised(b16, KINDS[kind][1])
    # torch wants scales of rows' blocks column-major, and others' rows a multiple of four apart
    lies = {True: lambda x: x.T.contiguous().T, False: _padded}
    scale_a, scale_b = (
        lies[block[0] == 1](x) if block[1] else x
        for x, block in zip((scale_a, scale_b), KINDS[kind], strict=True)
    )
    return Operands(a, b, scale_a, scale_b, a16, b16)


def _padded(x: torch.Tensor) -> torch.Tensor:
    wide = torch.nn.functional.pad(x, (0, -x.shape[1] % 4))
    return wide[:, : x.shape[1]]


def exact(x: Operands, kind: str) -> torch.Tensor:
    """The first rows of D in fp64."""

    def whole(values: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
        rows, depth = (full if size == 0 else size for size, full in zip(block, values.shape))
        wide = scale.double().repeat_interleave(rows, 0).repeat_interleave(depth, 1)
        return values.double() * wide[: values.shape[0], : values.shape[1]]

    a, b = (whole(*y) for y in ((x.a, x.scale_a, KINDS[kind][0]), (x.b, x.scale_b, KINDS[kind][1])))
    return a[:CHECKED_ROWS] @ b.T


def ours(kind: str, promote: Any) -> Callable[[Operands], torch.Tensor]:
    """Our product with one kind of scale."""
    names = [("block", *x) if x[1] else "row" if x[0] else "tensor" for x in KINDS[kind]]
    gemm = Gemm(GemmSpec(scale_a=names[0], scale_b=names[1], promote=promote, d_dtype="bf16"))
    shape = {"tensor": (), "row": (-1,)}.get(kind)

    def run(x: Operands) -> torch.Tensor:
        a, b = (y if shape is None else y.reshape(shape) for y in (x.scale_a, x.scale_b))
        return gemm.run(x.a, x.b.T, scale_a=a, scale_b=b)

    return run


def torchs(kind: str, fast: bool) -> Callable[[Operands], torch.Tensor]:
    """torch's product with the same kind of scale."""

    def run(x: Operands) -> torch.Tensor:
        whole = kind == "tensor"
        scales = (x.scale_a.reshape(()), x.scale_b.reshape(())) if whole else (x.scale_a, x.scale_b.T)
        return torch._scaled_mm(x.a, x.b.T, *scales, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return run


def contenders(kind: str, promotes: list[Any]) -> list[Contender]:
    """Ours, one for each promotion, and torch's; our own bf16 last."""
    plain = Gemm(GemmSpec())
    found = [Contender(f"ours {x}", ours(kind, x)) for x in promotes]
    fasts = (False,) if KINDS[kind][0][1] else (True, False)
    found += [Contender(f"torch {'fast' if fast else 'exact'}", torchs(kind, fast)) for fast in fasts]
    return [*found, Contender("ours bf16", lambda x: plain.run(x.a16, x.b16.T))]


def runs(contender: Contender, x: Operands) -> str | torch.Tensor:
    """What a contender gives, or why it does not."""
    try:
        return contender.call(x)
    except Exception as error:
        return str(error).strip().splitlines()[0][:120]


def measured(
    shape: tuple[int, int, int], kind: str, promotes: list[Any], regime: str, console: Console
) -> float:
    """Print one problem's times and errors; torch's least time of the exact ones over our first one."""
    m, n, k = shape
    count = max(1, -(-4 * L2_BYTES // ((m + n) * k)))
    sets = [drawn(shape, kind, seed) for seed in range(min(count, 64))]
    wanted, texts, alive = exact(sets[0], kind), [], []
    for x in contenders(kind, promotes):
        got = runs(x, sets[0])
        if isinstance(got, str):
            texts.append(f"{x.name}: {got}")
            continue
        found = got[:CHECKED_ROWS].double()
        error = ((found - wanted).norm() / wanted.norm()).item()
        texts.append(f"{x.name} error {error:.5f}")
        alive.append(x)
    times = timing.measure(alive, sets, timing.REGIMES[regime], device=timing.Device())
    shown = (f"{name} {t.us:.1f} us {2 * m * n * k / t.us / 1e6:.0f}" for name, t in times.items())
    console.print(f"{kind} {m}x{n}x{k}: {', '.join(shown)}; {', '.join(texts)}", soft_wrap=True)
    others = [times[x].us for x in ("torch exact",) if x in times] or [
        times[x].us for x in ("torch fast",) if x in times
    ]
    mine = times.get(f"ours {promotes[0]}")
    return min(others) / mine.us if others and mine else math.nan


def main() -> None:
    """Time every kind on every suite."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probes.fp8")
    parser.add_argument("--suites", default="square,prefill,decode")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--promote", default="auto")
    parser.add_argument("--regime", default="short", choices=sorted(timing.REGIMES))
    parser.add_argument("--all", action="store_true", help="every shape of the suites, not some of each")
    args = parser.parse_args()
    console = Console(width=400)
    promotes = [None if x == "none" else x if x == "auto" else int(x) for x in args.promote.split(",")]
    for kind in args.kinds.split(","):
        for suite in args.suites.split(","):
            shapes = SUITES[suite] if args.all else SHAPES[suite]
            # scales of blocks say themselves after how many elements sums are promoted
            given = ["auto"] if KINDS[kind][0][1] else promotes
            found = [measured(x, kind, given, args.regime, console) for x in shapes]
            ratios = [x for x in found if not math.isnan(x)]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                console.print(f"== {kind} {suite}: torch over ours {mean:.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
