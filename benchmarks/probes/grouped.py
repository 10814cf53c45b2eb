# SPDX-License-Identifier: Apache-2.0
"""Groups of rows in one launch beside torch's grouped product, a dense GEMM of as many FLOPs, and reading once.

    python -m benchmarks.probes.grouped [--tokens 16,256,4096] [--layers qwen3-up] [--spread zipf] [--out FILE.json]

bf16, B K-major; forward (rows in groups), the same of rows that indices name ("gather": by torch before, or by the
kernel), and a weight's gradient (groups along K, tokens as rows). Each is checked against torch first; sustained, by
graph replay, over two draws. Prints microseconds, the ratio to torch and the time to
read and write everything once; and the host's time of a call. Needs a Hopper GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import cutegemm
from benchmarks import timing
from benchmarks.timing import Contender, Regime
from cutegemm.compiling import kernel_cache
from cutegemm.ops.groups.grouped import planned
from cutegemm.spec import GemmSpec

# name -> (experts, experts of a token, N, K)
LAYERS = {
    "mixtral-up": (8, 2, 28672, 4096),
    "mixtral-down": (8, 2, 4096, 14336),
    "qwen3-up": (128, 8, 1536, 2048),
    "qwen3-down": (128, 8, 2048, 768),
    "dsv3-up": (32, 1, 4096, 7168),
    "dsv3-down": (32, 1, 7168, 2048),
}
TOKENS = (16, 64, 256, 1024, 4096, 16384)
SPREADS = ("uniform", "zipf")
KINDS = ("forward", "gather", "weight")
GATHERS = GemmSpec(a_load="cp_async")
READ = 4.58e6  # bytes a microsecond that an H200 reads
REGIME = Regime(name="probe", preheat=0.1, rest=0.0, sample=0.02, rounds=4)


@dataclass(frozen=True)
class Groups:
    """One draw: rows in groups, a matrix for each, where the groups end; of a gradient what comes from above.

    Gathered are `rows` of `tokens` instead.
    """

    a: torch.Tensor
    b: torch.Tensor
    ends: torch.Tensor
    above: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor


def drawn(layer: tuple[int, int, int, int], b: torch.Tensor, tokens: int, spread: str, seed: int) -> Groups:
    """Tokens whose experts are drawn with equal weights or with weights 1, 1/2, 1/3, ..."""
    experts, each, n, k = layer
    device = b.device
    generator = torch.Generator(device).manual_seed(seed)
    weights = torch.ones(experts, device=device)
    if spread == "zipf":
        weights /= torch.arange(1, experts + 1, device=device)
    taken = torch.multinomial(weights.expand(tokens, -1), each, generator=generator)
    counts = torch.bincount(taken.flatten(), minlength=experts)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) * k**-0.25

    rows = (taken.flatten().argsort() // each).int()
    return Groups(
        normal(tokens * each, k), b, counts.cumsum(0).int(), normal(tokens * each, n), normal(tokens, k), rows
    )


def contenders(kind: str) -> list[Contender]:
    """Ours, torch's, and a dense product of as many FLOPs."""
    if kind == "weight":
        return [
            Contender("cutegemm", lambda x: cutegemm.grouped_mm(x.above.T, x.a, x.ends, fallback="error")),
            Contender("torch", lambda x: torch._grouped_mm(x.above.T, x.a, offs=x.ends)),
        ]
    if kind == "gather":
        return [
            Contender("cutegemm", lambda x: _gathered(x, GATHERS)),
            Contender("torch", lambda x: torch._grouped_mm(x.tokens[x.rows], x.b, offs=x.ends)),
            Contender("torch's gather", lambda x: _gathered(x, None)),
        ]
    return [
        Contender("cutegemm", lambda x: cutegemm.grouped_mm(x.a, x.b, x.ends, fallback="error")),
        Contender("torch", lambda x: torch._grouped_mm(x.a, x.b, offs=x.ends)),
        Contender("dense", lambda x: torch.mm(x.a, x.b[0])),
    ]


def _gathered(x: Groups, spec: GemmSpec | None) -> torch.Tensor:
    found: torch.Tensor = cutegemm.grouped_mm(x.tokens, x.b, x.ends, rows=x.rows, spec=spec, fallback="error")
    return found


def bytes_of(kind: str, layer: tuple[int, int, int, int], x: Groups) -> int:
    """What must be read and written once: of weights those of groups that have rows."""
    experts, _, n, k = layer
    counts = torch.diff(x.ends, prepend=x.ends.new_zeros(1))
    matrices = experts if kind == "weight" else int((counts > 0).sum())
    return 2 * (matrices * n * k + x.a.numel() + x.above.numel())


def timed(kind: str, name: str, b: torch.Tensor, tokens: int, spread: str) -> dict[str, Any]:
    """One row of the results."""
    layer = LAYERS[name]
    found: dict[str, Any] = {"kind": kind, "layer": name, "tokens": tokens, "spread": spread}
    sets = [drawn(layer, b, tokens, spread, seed) for seed in range(2)]
    who = contenders(kind)
    try:
        for x in sets:
            ours, torchs = (c.call(x).float() for c in who[:2])
            found["error"] = ((ours - torchs).norm() / torchs.norm()).item()
            if len(who) > 2:
                who[2].call(x)
            del ours, torchs
        first = sets[0]
        plan = {
            "forward": lambda: planned(first.a, first.b, first.ends),
            "gather": lambda: planned(first.tokens, first.b, first.ends, GATHERS, first.rows),
            "weight": lambda: planned(first.above.T, first.a, first.ends),
        }[kind]()
        found["plan"] = (
            f"{plan.config.tile} {plan.config.cluster} {plan.config.schedule} {plan.config.grouped}"
        )
        times = timing.measure(who, sets, REGIME, device=timing.Device())
        found |= {x: round(t.us, 2) for x, t in times.items()}
        found["ratio"] = round(found["torch"] / found["cutegemm"], 3)
        found["roof"] = round(sum(bytes_of(kind, layer, x) for x in sets) / 2 / READ, 2)
        found["tflops"] = round(2 * tokens * layer[1] * layer[2] * layer[3] / found["cutegemm"] / 1e6, 1)
    except Exception as error:  # the other rows are still worth having
        found["failed"] = f"{type(error).__name__}: {error}"[:500]
    return found


def host_us(call: Any, x: Groups, count: int = 300) -> float:
    """Microseconds that a call takes on the host, while the device keeps up."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call(x)
        best = min(best, (time.perf_counter() - start) / count * 1e6)
    torch.cuda.synchronize()
    return best


def compiled(names: list[str], tokens: list[int], kinds: list[str]) -> None:
    """Compile every kernel that will be timed, in parallel."""
    configs = []
    for name in names:
        experts, each, n, k = LAYERS[name]
        for rows in (x * each for x in tokens):
            a, above = (torch.empty(rows, x, dtype=torch.bfloat16, device="cuda") for x in (k, n))
            ends = torch.zeros(experts, dtype=torch.int32, device="cuda")
            b = torch.empty_strided((experts, k, n), (n * k, 1, k), dtype=torch.bfloat16, device="cuda")
            index = torch.zeros(rows, dtype=torch.int32, device="cuda")
            given = {
                "forward": (a, b, ends),
                "gather": (a[: rows // each], b, ends, GATHERS, index),
                "weight": (above.T, a, ends),
            }
            configs += [planned(*given[kind]).config for kind in kinds]
            del a, above, b
    kernel_cache.ensure(configs)


def main() -> None:
    """Time every layer at every number of tokens."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probes.grouped")
    for name, values in (("tokens", TOKENS), ("layers", LAYERS), ("spread", SPREADS), ("kinds", KINDS)):
        parser.add_argument(f"--{name}", default=",".join(map(str, values)))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    console = Console(width=200)
    names, kinds = args.layers.split(","), args.kinds.split(",")
    tokens = [int(x) for x in args.tokens.split(",")]
    start = time.perf_counter()
    compiled(names, tokens, kinds)
    console.print(f"compiled in {time.perf_counter() - start:.0f} s")
    rows = []
    small = LAYERS["qwen3-down"]
    b = torch.randn(small[0], small[2], small[3], device="cuda", dtype=torch.bfloat16).mT
    x = drawn(small, b, 16, "uniform", 0)
    for one in contenders("forward")[:2]:
        one.call(x)
        rows.append({"kind": "host", "who": one.name, "us": round(host_us(one.call, x), 2)})
        console.print(rows[-1])
    for name in names:
        experts, _, n, k = LAYERS[name]
        b = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16).mul_(k**-0.25).mT
        for spread in args.spread.split(","):
            for count in tokens:
                for kind in kinds:
                    rows.append(timed(kind, name, b, count, spread))
                    console.print(" ".join(f"{key}={value}" for key, value in rows[-1].items()))
                    if args.out:
                        args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
