# SPDX-License-Identifier: Apache-2.0
"""What a call of an epilogue passes, by name, in the one order in which it travels from the caller to the kernel.

`ROLES` says what each kind of tensor is. `tensors` lists an epilogue's. From these two come

    a call's order and key          `running.arguments.named.Order`; the key is each tensor's identity, in this order
    the checks of its tensors       `running.arguments.describe`
    the layout of a launch          `launch_layout`: its addresses begin with these, in this order
    what a launch passes            `running.backends.launcher`: a call's addresses, as they are
    an artefact's recipe            `gemm.saving`

so that a new kind of tensor is a row of the table. No torch, no DSL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scales import BLOCK_KINDS


@dataclass(frozen=True, kw_only=True)
class Role:
    """What tensors of one kind have in common.

    Attributes:
        ranks: what ranks they may have.
        types: which element types (`element_types`): of "operands", of a "matrix" or a "vector" that an epilogue reads,
            of what it stores ("stored"), of scales of blocks ("scales"), or "fp32".
        written: whether a kernel writes them.
        strided: whether a launch passes their strides.
        shared: whether one may serve every batch, so that a launch passes its own batch extent.
    """

    ranks: tuple[int, ...]
    types: str = "matrix"
    written: bool = False
    strided: bool = True
    shared: bool = False


ROLES = {
    "operand": Role(ranks=(2, 3), types="operands", shared=True),
    "matrix": Role(ranks=(2, 3), shared=True),
    "row": Role(ranks=(1, 2), types="vector", shared=True),
    "col": Role(ranks=(1, 2), types="vector", shared=True),
    **dict.fromkeys(BLOCK_KINDS, Role(ranks=(2, 3), types="scales", shared=True)),
    "store": Role(ranks=(2, 3), types="stored", written=True),
    "reduction": Role(ranks=(0, 1, 2, 3), types="stored", written=True, strided=False),
    "scalar": Role(ranks=(0,), types="fp32", strided=False),
}


@dataclass(frozen=True)
class Passed:
    """One tensor of a call."""

    name: str
    role: Role


def tensors(graph: Graph, scalars: Iterable[str], operands: Sequence[str] = ("a", "b")) -> tuple[Passed, ...]:
    """The tensors of a call, in their order.

    Args:
        graph: the epilogue.
        scalars: names of its scalars that are tensors.
        operands: names of the mainloop's matrices.
    """
    return (
        *(Passed(name, ROLES["operand"]) for name in operands),
        *(Passed(name, ROLES[kind]) for name, kind in graph.tensors.items()),
        *(Passed(x.name, ROLES["store"]) for x in graph.stores),
        *(Passed(x.name, ROLES["reduction"]) for x in graph.reductions),
        *(Passed(name, ROLES["scalar"]) for name in scalars),
    )


def numbers(graph: Graph, scalars: Iterable[str]) -> dict[str, str]:
    """Name -> kind of the numbers that a call passes by value, in their order; `scalars` are tensors."""
    tensors = set(scalars)
    return {name: kind for name, kind in graph.numbers.items() if name not in tensors}
