# SPDX-License-Identifier: Apache-2.0
"""Grouped GEMMs of MoE layers: draws of tokens, and contenders by kind of work.

Weights are K-major and shared by all draws of a case. Together the draws access twice L2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import cutegemm
from benchmarks.inputs import ROTATION_BYTES
from benchmarks.timing import Contender
from cutegemm.nn.experts import routes, summed

OURS, TORCH = "cutegemm", "torch"
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
# name -> (experts, experts per token, N, K); DeepSeek-V3 has the 32 experts of one of eight GPUs
LAYERS = {
    "mixtral-up": (8, 2, 28672, 4096),
    "mixtral-down": (8, 2, 4096, 14336),
    "qwen3-up": (128, 8, 1536, 2048),
    "qwen3-down": (128, 8, 2048, 768),
    "dsv3-up": (32, 1, 4096, 7168),
    "dsv3-down": (32, 1, 7168, 2048),
    "gpt-oss-up": (128, 4, 5760, 2880),
    "gpt-oss-down": (128, 4, 2880, 2880),
    "qwen3-next-up": (512, 10, 1024, 2048),
    "qwen3-next-down": (512, 10, 2048, 512),
}
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
# probabilities of experts: equal; 1, 1/2, 1/3, ...; equal for half of them; or all rows belong to one expert
SPREADS = ("uniform", "zipf", "half", "alone")
MOST_SETS = 32


@dataclass(frozen=True)
class Case:
    """A kind of work, a layer or model, a number of tokens and their spread over experts."""

    kind: str
    layer: str
    tokens: int
    spread: str

    def __str__(self) -> str:
        return f"{self.kind} {self.layer} {self.tokens} {self.spread}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of the GEMMs."""
        _, each, n, k = LAYERS[self.layer]
        return 2 * self.tokens * (1 if self.spread == "alone" else each) * n * k


@dataclass(frozen=True)
class Draw:
    """One draw of a case.

    Attributes:
        a: (R, K), rows sorted by expert.
        b: (E, K, N), weights.
        ends: (E,) int32, end of each group.
        above: (R, N), upstream gradient for the gradient of a weight.
        tokens: (T, K).
        rows: (R,), the token of each row.
        place: (T, k), the rows of each token.
        weight: (R,) fp32.
        expert: the expert of all rows with spread "alone".
        eight: 8-bit operands and their scales.
    """

    a: Tensor
    b: Tensor
    ends: Tensor
    above: Tensor
    tokens: Tensor
    rows: Tensor
    place: Tensor
    weight: Tensor
    expert: int = 0
    eight: tuple[Tensor, ...] = ()


def weights(layer: str, device: str, empty: bool = False) -> Tensor:
    """The matrices of a layer's experts."""
    experts, _, n, k = LAYERS[layer]
    b = torch.empty(experts, n, k, device=device, dtype=BF16)
    return b.mT if empty else b.normal_(generator=torch.Generator(device).manual_seed(0)).mul_(k**-0.25).mT


def drawn(case: Case, b: Tensor, seed: int, empty: bool = False) -> Draw:
    """Tokens with random experts; `empty` draws have shapes but no values, for compiling."""
    experts, each, n, k = LAYERS[case.layer]
    device, tokens = b.device, case.tokens
    if case.spread == "alone":
        each = 1
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        x = torch.empty(shape, device=device, dtype=BF16)
        return x if empty else x.normal_(generator=generator).mul_(k**-0.25)

    if empty:
        taken = torch.zeros(tokens, each, dtype=torch.int64, device=device)
    else:
        chances = torch.ones(experts, device=device)
        if case.spread == "zipf":
            chances /= torch.arange(1, experts + 1, device=device)
        elif case.spread == "half":
            chances[torch.randperm(experts, generator=generator, device=device)[: experts // 2]] = 0
        elif case.spread == "alone":
            chances = torch.nn.functional.one_hot(
                torch.tensor(seed % experts, device=device), experts
            ).float()
        taken = torch.multinomial(chances.expand(tokens, -1), each, generator=generator)
    to = routes(taken, experts)
    count = tokens * each
    made = Draw(
        normal(count, k), b, to.bounds[1:].contiguous(), normal(count, n), normal(tokens, k), to.rows.int(), to.place,
        torch.rand(count, generator=generator, device=device), seed % experts,
    )  # fmt: skip
    return made


def sets_of(case: Case, b: Tensor) -> list[Draw]:
    """Enough draws that a launch finds none of its operands in L2."""
    first = drawn(case, b, 0)
    count = max(2, -(-ROTATION_BYTES // bytes_of(case, first)))
    return [first, *(drawn(case, b, seed) for seed in range(1, min(count, MOST_SETS)))]


def bytes_of(case: Case, x: Draw) -> int:
    """Bytes that must be read and written once, with the weights of nonempty groups."""
    experts, _, n, k = LAYERS[case.layer]
    counts = torch.diff(x.ends, prepend=x.ends.new_zeros(1))
    matrices = experts if case.kind == "weight" else int((counts > 0).sum())
    size = 1 if case.kind.startswith("fp8") else 2
    read = x.tokens.numel() if case.kind == "gather" else x.a.numel()
    written = x.above.numel() * (x.tokens.shape[0] / x.a.shape[0] if case.kind == "scatter" else 1)
    return int(size * (matrices * n * k + read) + 2 * written)


def in_8_bits(sets: list[Draw], kind: str) -> list[Draw]:
    """Draws with operands in e4m3, with scales of rows, or of 1 x 128 and 128 x 128."""
    how: Any = ("row", "row") if kind == "fp8_rows" else (("block", 1, 128), ("block", 128, 128))
    b, scale_b = cutegemm.quantize(sets[0].b.mT, how[1])
    every = ((x, cutegemm.quantize(x.a, how[0])) for x in sets)
    return [Draw(**vars(x) | {"eight": (a.values, b.mT, a.scale, scale_b)}) for x, a in every]


def shaped_in_8_bits(x: Draw, kind: str) -> Draw:
    """A draw with uninitialized e4m3 operands in the layout of `in_8_bits`."""
    (m, k), (experts, _, n) = x.a.shape, x.b.shape
    a, b = (torch.empty(y.shape, dtype=E4M3, device=y.device) for y in (x.a, x.b.mT))
    blocks = -(-k // 128)
    shapes = ((m,), (experts, n)) if kind == "fp8_rows" else ((blocks, m), (experts, -(-n // 128), blocks))
    scale_a, scale_b = (torch.empty(y, device=a.device) for y in shapes)
    return Draw(**vars(x) | {"eight": (a, b.mT, scale_a if kind == "fp8_rows" else scale_a.mT, scale_b)})


Call = Callable[[Draw], Tensor]


def contenders(case: Case, fallback: str = "error") -> list[Contender]:
    """The contenders of a case, ours first.

    Args:
        fallback: argument of our functions, for machines without a GPU.
    """
    mm = functools.partial(cutegemm.grouped_mm, fallback=fallback)
    torchs: Call = lambda x: torch._grouped_mm(x.a, x.b, offs=x.ends)
    dense: Call = lambda x: torch.mm(x.a, x.b[x.expert])
    ours: Call = lambda x: mm(x.a, x.b, x.ends)

    def combined(x: Draw, y: Tensor) -> Tensor:
        return torch.embedding(y * x.weight.to(y.dtype)[:, None], x.place).sum(1)

    def eight(x: Draw) -> Tensor:
        a, b, scale_a, scale_b = x.eight
        return mm(a, b, x.ends, scale_a=scale_a, scale_b=scale_b)

    def moved(call: Call) -> Call:
        return lambda x: call(Draw(**vars(x) | {"ends": x.ends.clone()}))

    found: dict[str, dict[str, Call]] = {
        "forward": {OURS: ours, TORCH: torchs, "dense": dense},
        "weight": {
            OURS: lambda x: mm(x.above.T, x.a, x.ends),
            TORCH: lambda x: torch._grouped_mm(x.above.T, x.a, offs=x.ends),
        },
        "gather": {
            OURS: lambda x: mm(x.tokens, x.b, x.ends, rows=x.rows),
            TORCH: lambda x: torch._grouped_mm(x.tokens[x.rows], x.b, offs=x.ends),
            "copied": lambda x: mm(x.tokens[x.rows], x.b, x.ends),
        },
        "scatter": {
            OURS: lambda x: summed(mm(x.a, x.b, x.ends, weight=x.weight), x.place),
            TORCH: lambda x: combined(x, torchs(x)),
            "copied": lambda x: combined(x, ours(x)),
        },
        "fp8_rows": {OURS: eight, "bf16": ours},
        "fp8_blocks": {OURS: eight, "bf16": ours},
        "replay": {OURS: moved(ours), TORCH: moved(torchs)},
        "host": {OURS: ours, TORCH: torchs},
    }  # fmt: skip
    calls = found[case.kind]
    if case.spread == "alone":
        calls = {
            OURS: ours,
            "dense": lambda x: cutegemm.matmul(x.a, x.b[x.expert], fallback=fallback),
            TORCH: torchs,
        }
    return [Contender(name, call) for name, call in calls.items()]


def baseline(case: Case) -> str:
    """The baseline of a case."""
    return "bf16" if case.kind.startswith("fp8") else "dense" if case.spread == "alone" else TORCH


__all__ = [
    "BF16",
    "LAYERS",
    "OURS",
    "SPREADS",
    "TOKENS",
    "TORCH",
    "Case",
    "Draw",
    "baseline",
    "bytes_of",
    "contenders",
    "drawn",
    "in_8_bits",
    "sets_of",
    "shaped_in_8_bits",
    "weights",
]
