# SPDX-License-Identifier: Apache-2.0
"""Two GEMMs of groups with a gated activation between them, whose gradients meet in one launch: a mixture's experts.

As `ops.perceptron` does for one weight: the first launch stores the hidden layer, and gate and up side by side; in the
backward pass the second weight's launch applies the activation's gradient, so that the hidden layer's is never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.library import swiglu
from cutegemm.ops.dispatch import direct
from cutegemm.ops.entry_points import server_of
from cutegemm.ops.fallback import HALF, address, autocast_to, autocast_type
from cutegemm.ops.gradients.once import final, sources_of
from cutegemm.ops.gradients.saved import taken
from cutegemm.ops.groups.grouped_op import many
from cutegemm.ops.perceptron import Texts, described, remembered
from cutegemm.ops.products import is_compiling

SWIGLU = swiglu()


def gated_groups(x: Tensor, up: Tensor, down: Tensor, bounds: Tensor, fallback: str = "torch") -> Tensor:
    """Each group's rows of silu(gate) * up by its second matrix, (R, P), with gradients; rows of no group are zero.

    Args:
        x: (R, K), in groups.
        up: (G, K, 2 N), gates before linear parts; down: (G, N, P).
        bounds: (G + 1,): the first group's begin, then the ends.
        fallback: as of `grouped_mm`.
    """
    who = server_of(x.device, fallback, "cutegemm.grouped_mm")
    who = "reference" if who == "torch" else who
    compiling = is_compiling()
    texts = described(address(SWIGLU), (), False, who) if compiling else remembered(SWIGLU, (), False, who)
    if (dtype := autocast_type(x.device)) in HALF:
        x, up, down = [autocast_to(dtype, t) for t in (x, up, down)]
    found: Tensor = GatedGroups.apply(texts, x, up, down, bounds)  # type: ignore[no-untyped-call]
    return found


def _launch(
    text: str,
    a: Tensor,
    b: Tensor,
    bounds: Tensor,
    inputs: Sequence[Tensor] | None = None,
    form: str = "rows",
) -> Any:
    """All outputs of a GEMM of groups; without `inputs` its epilogue is a factor, which is 1."""
    numbers, read, how = [1.0] if inputs is None else [], inputs or [], f"{form}:cu_seqlens:zero"
    with torch.no_grad():
        call = many if direct(a, b, bounds, *read) else torch.ops.cutegemm.grouped_mm.many
        return call(a, b, bounds, read, numbers, [], text, how)


def _of_matrices(texts: Texts, turned: bool, a: Tensor, above: Tensor, bounds: Tensor) -> Tensor:
    """The gradient of the groups' matrices, laid out as they are: with consecutive rows, where `turned`."""
    left, right = (above, a) if turned else (a, above)
    (found,) = _launch(texts.weight, left.mT, right, bounds, form="depth")
    return found.mT if turned else found  # type: ignore[no-any-return]


class GatedGroups(torch.autograd.Function):
    """See `gated_groups`."""

    @staticmethod
    def forward(ctx: Any, texts: Texts, x: Tensor, up: Tensor, down: Tensor, bounds: Tensor) -> Tensor:
        """Two launches; the hidden layer, and what the activation was of, are kept."""
        h, z = _launch(texts.hidden, x, up, bounds, [])
        (y,) = _launch(texts.output, h, down, bounds)
        _, of_x, of_up, of_down, _ = ctx.needs_input_grad
        ctx.texts, ctx.turned = texts, (up.stride(-1) != 1, down.stride(-1) != 1)
        read = (x, of_up), (up, of_x), (h, of_down), (down, of_x or of_up), (z, of_x or of_up)
        ctx.save_for_backward(bounds, *[t if needed else None for t, needed in read])
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """A launch for each gradient, and one for that of the hidden layer."""
        (dy,), texts, (up_turned, down_turned) = grads, ctx.texts, ctx.turned
        bounds, x, up, h, down, z = taken(ctx)
        sources = sources_of(dy, x, up, h, down, z)
        dx = dup = ddown = None
        if h is not None:
            ddown = _of_matrices(texts, down_turned, h, dy, bounds)
            # free before the gradient of Z is made
            h = None
        if z is not None:
            saved = dict(zip(texts.saved, z.chunk(2, -1)))
            (dz,) = _launch(texts.gradient, dy, down.mT, bounds, [saved[name] for name in texts.read])
            if x is not None:
                dup = _of_matrices(texts, up_turned, x, dz, bounds)
            if up is not None:
                (dx,) = _launch(texts.input, dz, up.mT, bounds)
        return None, *final((dx, dup, ddown), sources), None


__all__ = ["SWIGLU", "gated_groups"]
