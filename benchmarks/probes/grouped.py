# SPDX-License-Identifier: Apache-2.0
"""Groups of rows in one launch beside torch's grouped product and one dense GEMM of as many FLOPs.

    python -m benchmarks.probes.grouped [--tokens 16,256,4096,16384] [--layers qwen3-up]

bf16, B K-major, tokens drawn over experts by Zipf's law. Checked against torch first; sustained, by graph replay, over
input sets that together exceed L2. Prints microseconds and TFLOP/s; needs a Hopper GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from benchmarks import timing
from benchmarks.timing import Contender
from cutegemm.running.grouped_mm import multiply_groups

# name -> (experts, experts of a token, N, K)
LAYERS = {
    "mixtral-up": (8, 2, 28672, 4096),
    "mixtral-down": (8, 2, 4096, 14336),
    "qwen3-up": (128, 8, 1536, 2048),
    "qwen3-down": (128, 8, 2048, 768),
}
TOKENS = (16, 256, 4096, 16384)
L2_BYTES = 50 << 20


@dataclass(frozen=True)
class Groups:
    """One input set: rows of A in groups, a matrix of B each, and where the groups end."""

    a: torch.Tensor
    b: torch.Tensor
    ends: torch.Tensor
    dense: torch.Tensor


def drawn(layer: tuple[int, int, int, int], tokens: int, seed: int, device: str) -> Groups:
    """Tokens whose experts are drawn with weights 1, 1/2, 1/3, ..."""
    experts, each, n, k = layer
    generator = torch.Generator(device).manual_seed(seed)
    weights = 1.0 / torch.arange(1, experts + 1, device=device)
    taken = torch.multinomial(weights.expand(tokens, -1), each, generator=generator)
    counts = torch.bincount(taken.flatten(), minlength=experts)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) * k**-0.25

    b = normal(experts, n, k)
    return Groups(normal(tokens * each, k), b.mT, counts.cumsum(0).int(), b[0].T)


def contenders() -> list[Contender]:
    """Ours, torch's, and a dense product."""

    def torchs(x: Groups) -> Any:
        return torch._grouped_mm(x.a, x.b, offs=x.ends)

    return [
        Contender("cutegemm", lambda x: multiply_groups(x.a, x.b, x.ends)),
        Contender("torch", torchs),
        Contender("dense", lambda x: torch.mm(x.a, x.dense)),
    ]


def main() -> None:
    """Time every layer at every number of tokens."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probes.grouped")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--layers", default=",".join(LAYERS))
    args = parser.parse_args()
    console = Console()
    for name in args.layers.split(","):
        for tokens in map(int, args.tokens.split(",")):
            layer = LAYERS[name]
            count = max(1, -(-4 * L2_BYTES // (2 * layer[0] * layer[2] * layer[3])))
            sets = [drawn(layer, tokens, seed, "cuda") for seed in range(count)]
            ours, torchs, dense = contenders()
            for x in sets:
                torch.testing.assert_close(ours.call(x), torchs.call(x), rtol=2e-2, atol=2e-2)
                dense.call(x)
            times = timing.measure(
                [ours, torchs, dense], sets, timing.REGIMES["short"], device=timing.Device()
            )
            flops = 2 * tokens * layer[1] * layer[2] * layer[3]
            found = (f"{x} {t.us:.1f} us {flops / t.us / 1e6:.0f} TFLOP/s" for x, t in times.items())
            console.print(f"{name} {tokens}: " + ", ".join(found))


if __name__ == "__main__":
    main()
