# SPDX-License-Identifier: Apache-2.0
"""The cases that are compared with torch: for each contender a function that makes its call.

Making a call allocates and compiles. The call runs once and returns its results by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import cutegemm
from cutegemm import nn

DTYPE = torch.bfloat16
# calls in one compiled graph
CHAIN = 20
# divisor of extents without a GPU
SHRINK = 64

Results = dict[str, torch.Tensor]
Call = Callable[[], Results]
Makers = dict[str, Callable[[], Call]]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Extents, smaller without a GPU."""

    rows: int = 8192
    width: int = 4096
    hidden: int = 14336
    small: int = 256

    def shrunk(self) -> Sizes:
        """Small enough for a CPU."""
        return Sizes(*(max(8, x // SHRINK) for x in dataclasses.astuple(self)))


def normal(*shape: int, device: str, scale: float = 1.0) -> torch.Tensor:
    """Random elements, the same in every run."""
    generator = torch.Generator(device).manual_seed(sum(shape))
    made = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
    return made.mul_(scale).to(DTYPE)


def training(module: Any, x: torch.Tensor, upstream: torch.Tensor) -> Call:
    """Forward and backward of a module; returns its output and the gradients of its input and parameters."""
    x = x.clone().requires_grad_()
    parameters = dict(getattr(module, "_orig_mod", module).named_parameters())

    def call() -> Results:
        x.grad = None
        for p in parameters.values():
            p.grad = None
        y = module(x)
        y.backward(upstream)
        grads: Any = {name: p.grad for name, p in parameters.items()}
        return {"y": y.detach(), "dx": x.grad} | grads  # type: ignore[dict-item]

    return call


def of_linear(sizes: Sizes, device: str, bias: bool) -> Makers:
    """Contenders of a linear layer's training step."""
    shape = sizes.width, sizes.width
    x = normal(sizes.rows, sizes.width, device=device)
    upstream = normal(sizes.rows, sizes.width, device=device, scale=0.5)

    def make(kind: Any) -> Callable[[], Call]:
        def made() -> Call:
            torch.manual_seed(0)
            return training(kind(*shape, bias, device=device, dtype=DTYPE), x, upstream)

        return made

    return {"torch": make(torch.nn.Linear), "cutegemm": make(nn.Linear)}


def of_mlp(sizes: Sizes, device: str, compiler: Callable[[Any], Any]) -> Makers:
    """Contenders of an MLP's training step."""
    x = normal(sizes.rows, sizes.width, device=device)
    upstream = normal(sizes.rows, sizes.width, device=device, scale=0.5)

    def make(ours: bool, compiled: bool) -> Callable[[], Call]:
        def made() -> Call:
            torch.manual_seed(0)
            module: Any = nn.MLP(sizes.width, sizes.hidden, activation="gelu", device=device, dtype=DTYPE)
            if not ours:
                first, last = (
                    torch.nn.Linear(n.in_features, n.out_features, device=device, dtype=DTYPE)
                    for n in (module[0], module[2])
                )
                other = torch.nn.Sequential(first, torch.nn.GELU(), last)
                other.load_state_dict(module.state_dict())
                module = other
            return training(compiler(module) if compiled else module, x, upstream)

        return made

    return {
        "torch": make(False, False),
        "torch_compile": make(False, True),
        "cutegemm": make(True, False),
        "cutegemm_compile": make(True, True),
    }


def of_replay(sizes: Sizes, device: str, compiler: Callable[[Any], Any]) -> Makers:
    """A chain of equal GEMMs: `Gemm.run`, and our and torch's `linear` in a compiled graph."""
    n = sizes.small
    x = normal(n, n, device=device)
    weights = [normal(n, n, device=device, scale=n**-0.5) for _ in range(CHAIN)]

    def bare() -> Call:
        gemm = cutegemm.build(cutegemm.GemmSpec())
        where = [torch.empty_like(x) for _ in weights]
        # without a Hopper GPU the reference replaces it
        backend: Any = None if device == "cuda" else "reference"

        def call() -> Results:
            y = x
            for w, out in zip(weights, where):
                y = gemm.run(y, w.t(), out=out, backend=backend)
            return {"y": y}

        return call

    def compiled(product: Callable[..., Any]) -> Callable[[], Call]:
        def chain(y: torch.Tensor) -> torch.Tensor:
            for w in weights:
                y = product(y, w)
            return y

        def made() -> Call:
            fast = compiler(chain)

            def call() -> Results:
                with torch.no_grad():
                    return {"y": fast(x)}

            return call

        return made

    return {
        "bare": bare,
        "cutegemm_compile": compiled(cutegemm.linear),
        "torch_compile": compiled(torch.nn.functional.linear),
    }


def host_calls(what: str, sizes: Sizes, device: str) -> Makers:
    """Contenders of host times; `what` is "matmul", "linear" or "linear bias", optionally with " grad"."""
    n = sizes.small
    a, b, bias = normal(n, n, device=device), normal(n, n, device=device), normal(n, device=device)
    records = what.endswith("grad")
    b.requires_grad_(records)
    bias.requires_grad_(records)
    product, *rest = what.removesuffix(" grad").split()
    pair: dict[str, Any] = {
        "matmul": {"torch": torch.matmul, "cutegemm": cutegemm.matmul},
        "linear": {"torch": torch.nn.functional.linear, "cutegemm": cutegemm.linear},
    }[product]
    args = (a, b, bias) if rest else (a, b)

    def make(f: Any) -> Callable[[], Call]:
        return lambda: lambda: {"y": f(*args)}

    made = {name: make(f) for name, f in pair.items()}
    if what == "matmul":
        gemm, out = cutegemm.build(cutegemm.GemmSpec()), torch.empty_like(a)
        backend: Any = None if device == "cuda" else "reference"
        made["run"] = lambda: lambda: {"y": gemm.run(a, b, out=out, backend=backend)}
    return made
