# SPDX-License-Identifier: Apache-2.0
"""Whole MoE layers: `cutegemm.nn.MoE` and transformers' compiled block with its `grouped_mm` experts.

All have the same weights. One compilation of a layer supports every number of tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.probes.grouped_cases import BF16, OURS, Case
from benchmarks.timing import Contender
from cutegemm import grouped_mm, nn
from cutegemm.nn.experts import WEIGHTED

THEIRS = "transformers_compile"
COMPILED = f"{OURS}_compile"
# name -> (hidden, intermediate, experts, experts per token)
MODELS = {"qwen3-30b": (2048, 768, 128, 8), "mixtral": (4096, 14336, 8, 2)}
KINDS = ("moe", "moe_backward", "moe_step")


def ours(model: str, device: str, fallback: str = "error") -> nn.MoE:
    """Our layer of a model, with random weights."""
    hidden, intermediate, experts, each = MODELS[model]
    torch.manual_seed(0)
    return nn.MoE(hidden, intermediate, experts, each, device=device, dtype=BF16, fallback=fallback)


def launched(case: Case) -> None:
    """Launch the kernels of our layer, and those of the compiled one, which leaves copies to Inductor."""
    moe = ours(case.layer, "meta").to_empty(device="cpu")
    contenders(case, {OURS: moe})[0].call(sets_of(case, "cpu")[0])
    hidden, intermediate, experts, each = MODELS[case.layer]
    rows, inner = (torch.empty(case.tokens * each, y, dtype=BF16) for y in (hidden, intermediate))
    bounds = torch.zeros(experts + 1, dtype=torch.int32)
    gate_up, down = (y.detach().mT for y in (moe.gate_up_weight, moe.down_weight))
    weights = torch.empty(case.tokens * each)
    grouped_mm(
        rows,
        gate_up,
        cu_seqlens=bounds,
        epilogue=WEIGHTED,
        weights=weights,
        tail="undefined",
        fallback="error",
    )
    grouped_mm(inner, down, cu_seqlens=bounds, fallback="error")


def theirs(model: str, moe: nn.MoE) -> torch.nn.Module:
    """transformers' block of a model, with the weights of ours."""
    import transformers

    hidden, intermediate, experts, each = MODELS[model]
    shared: dict[str, Any] = {"hidden_size": hidden, "num_experts_per_tok": each, "hidden_act": "silu"}
    if model == "mixtral":
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock as Block

        config: Any = transformers.MixtralConfig(
            intermediate_size=intermediate, num_local_experts=experts, **shared
        )
    else:
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock as Block

        config = transformers.Qwen3MoeConfig(
            moe_intermediate_size=intermediate, num_experts=experts, norm_topk_prob=True, **shared
        )
    config._experts_implementation = "grouped_mm"
    with torch.device("meta"):
        block: Any = Block(config)
    own = {
        "gate.weight": moe.router.weight,
        "experts.gate_up_proj": moe.gate_up_weight,
        "experts.down_proj": moe.down_weight,
    }
    block.load_state_dict({x: y.detach() for x, y in own.items()}, assign=True)
    return block.requires_grad_(True)  # type: ignore[no-any-return]


class Layers:
    """The layers of the last requested model, compiled once for all numbers of tokens."""

    def __init__(
        self, compiler: Callable[[Any], Any] | None = None, device: str = "cuda", fallback: str = "error"
    ) -> None:
        self.compiler = compiler or functools.partial(torch.compile, dynamic=True)
        self.device, self.fallback = device, fallback
        self.known: tuple[str, dict[str, Any]] = ("", {})

    def of(self, model: str) -> dict[str, Any]:
        """The layers of a model by contender."""
        if self.known[0] != model:
            self.known = "", {}
            moe = ours(model, self.device, self.fallback)
            made = {OURS: moe, THEIRS: self.compiler(theirs(model, moe)), COMPILED: self.compiler(moe)}
            self.known = model, made
        return self.known[1]


def sets_of(case: Case, device: str) -> list[Tensor]:
    """Two draws of tokens with a batch dimension, which transformers' blocks need."""
    hidden = MODELS[case.layer][0]
    generator = torch.Generator(device).manual_seed(case.tokens)
    return [
        torch.empty(1, case.tokens, hidden, device=device, dtype=BF16).normal_(generator=generator)
        for _ in range(2)
    ]


def contenders(case: Case, layers: dict[str, Any]) -> list[Contender]:
    """The contenders of a layer; but for "moe" they also compute all gradients, and return the tokens'."""

    def forward(module: Any) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            with torch.no_grad():
                return module(x)  # type: ignore[no-any-return]

        return call

    def step(module: Any) -> Callable[[Tensor], Tensor]:
        parameters = list(module.parameters())

        def call(x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            y = module(x)
            dx, *_ = torch.autograd.grad(y, (x, *parameters), x.detach())
            return torch.stack((y.detach(), dx))

        return call

    make = forward if case.kind == KINDS[0] else step
    return [Contender(name, make(module)) for name, module in layers.items()]
