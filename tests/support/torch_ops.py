# SPDX-License-Identifier: Apache-2.0
"""Two functions of torch tensors compared, results and gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

# relative error, in the Frobenius norm, that two orders of summation and one rounding more allow
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative error in the Frobenius norm."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    scale = expected.double().norm().item() or 1.0
    return (found.double() - expected.double()).norm().item() / scale


def assert_same(
    ours: Callable[..., Any], theirs: Callable[..., Any], *tensors: torch.Tensor, bound: float | None = None
) -> None:
    """Values and all gradients of two functions of the tensors agree; the second one is computed in fp64."""
    bound = BOUNDS[tensors[0].dtype] if bound is None else bound
    mine = [x.detach().clone().requires_grad_() for x in tensors]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    found, expected = ours(*mine), theirs(*exact)
    assert error(found.detach(), expected.detach()) <= bound
    upstream = torch.randn(expected.shape, dtype=torch.float64, device=expected.device).to(found.dtype)
    found.backward(upstream)
    expected.backward(upstream.double())
    for i, (x, y) in enumerate(zip(mine, exact)):
        assert x.grad is not None and y.grad is not None, i
        assert x.grad.dtype == x.dtype
        assert error(x.grad, y.grad) <= bound, i


class Alive:
    """Bytes of products' results that somebody still holds.

    Attributes:
        most: the greatest number after any product.
    """

    def __init__(self) -> None:
        self._known: dict[StorageWeakRef, int] = {}
        self.most = 0

    def watched(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """`ops.serve.serve`, whose results are counted from now on."""

        def served(*args: Any) -> Any:
            found = serve(*args)
            for x in found:
                storage = x.untyped_storage()
                self._known[StorageWeakRef(storage)] = storage.nbytes()
            self._known = {ref: n for ref, n in self._known.items() if not ref.expired()}
            self.most = max(self.most, sum(self._known.values()))
            return found

        return served


def survivors(call: Callable[[], Any]) -> list[tuple[int, ...]]:
    """The shapes of tensors with memory that are there after a call and were not before; what it returns is let go."""
    gc.collect()
    # what is there is set apart: looking through it once a call takes seconds in a worker that has run for minutes
    gc.freeze()
    call()
    gc.collect()
    found = (x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter))
    return [tuple(x.shape) for x in found if x.numel() and x.device.type != "meta"]
