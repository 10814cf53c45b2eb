# SPDX-License-Identifier: Apache-2.0
"""Grouped GEMMs with an epilogue that autograd records: one launch for the accumulator, one for the epilogue.

One launch stores the accumulators in A's type. Another, without a mainloop (K = 0), reads them as matrices and applies
the epilogue. `group_gradient` has the first one's gradient, `gradients.gradient` the second one's.

The second launch covers all rows. Rows outside all groups may hold anything, also in the incoming gradient. It reads
and stores zeros there, so they do not take part in sums of gradients.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import TENSORS, Graph, Node
from cutegemm.epilogue.scales import NAMES as SCALES
from cutegemm.errors import InputError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.fallback import address, constant, found_at
from cutegemm.ops.groups.group_gradient import PLAIN, added_to_main_grad
from cutegemm.ops.groups.grouped_op import Call
from cutegemm.ops.products import check_names, is_compiling, made, through_the_op
from cutegemm.ops.program import Program
from cutegemm.request.group_forms import PACKED, check_form
from cutegemm.running.arguments.results import Outputs
from cutegemm.running.grouped_mm import check_own
from cutegemm.running.numerics.group_reference import bounds, inside_groups
from cutegemm.spec import AUTO, GemmSpec

# accumulator -> the name under which the epilogue reads it as a matrix
STORED: dict[Any, str] = {None: "stored_acc", "gate": "stored_gate", "up": "stored_up"}
# the vector that is not 0 at rows, or columns, of a group; form -> its kind
INSIDE, _INSIDE = "inside_groups", {"rows": "col", "columns": "row", "masked": "col"}


@lru_cache(64)
def _programs(
    graph: Graph,
    spec: GemmSpec | None,
    dtype: Any,
    spread: tuple[str, ...],
    scalars: tuple[str, ...],
    backend: Any,
    form: str,
) -> tuple[Program, Program, Program]:
    """Programs of the call without gradients, of its accumulators, and of the epilogue that reads them.

    Raises:
        SpecError: the spec has another epilogue.
    """
    asked = made(graph, spec, "matrix", scalars, backend)

    def read(node: Node) -> Node:
        if node.op == "acc":
            return Node("matrix", value=STORED[node.value])
        return dataclasses.replace(node, op="matrix") if node.value in spread else node

    spec = GemmSpec() if spec is None else spec
    d_dtype = spec.d_dtype if dtype is None else as_dtype(dtype)
    plain = dataclasses.replace(spec, epilogue=AUTO, d_dtype=AUTO, d_major=AUTO)
    read_back = dataclasses.replace(graph, nodes=tuple(map(read, graph.nodes)), gated=None)
    if form in _INSIDE:
        read_back = kept_inside(read_back, _INSIDE[form])
    return (
        asked,
        made(PLAIN[False, False], plain, "matrix", (), backend),
        made(read_back, GemmSpec(d_dtype=d_dtype), "matrix", scalars, backend),
    )


def kept_inside(graph: Graph, kind: str) -> Graph:
    """The epilogue whose inputs and outputs are 0 where `INSIDE`, a vector of this kind, is 0.

    A choice between two values drops NaN, which a product with 0 would not; so does its derivative.
    """
    nodes = [Node(kind, value=INSIDE), Node("const", value=0.0), Node("ne", (0, 1))]

    def choose(place: int) -> int:
        nodes.append(Node("where", (2, place, 1)))
        return len(nodes) - 1

    places: list[int] = []
    for node in graph.nodes:
        nodes.append(dataclasses.replace(node, args=tuple(places[x] for x in node.args)))
        place = len(nodes) - 1
        places.append(choose(place) if node.op in (*TENSORS, "scalar") else place)
    outputs = tuple(dataclasses.replace(x, node=choose(places[x.node])) for x in graph.outputs)
    return dataclasses.replace(graph, nodes=tuple(nodes), outputs=outputs)


@constant
def _steps(
    graph: int, spec: int, dtype: Any, spread: tuple[str, ...], scalars: tuple[str, ...], backend: Any,
    names: tuple[str, ...], form: str,
) -> tuple[Any, ...]:  # fmt: skip
    """Both programs of a recorded call. torch.compile treats the result as constant, so graph and spec are addresses.

    Returns:
        The accumulators' program and the epilogue's, as text; the names of the epilogue's inputs, numbers, integers and
        outputs; and the graph's `gated`.

    Raises:
        InputError: the epilogue does not read these names.
        SpecError: the spec has another epilogue.
    """
    found = found_at(graph)
    asked, stored, program = _programs(found, found_at(spec), dtype, spread, scalars, backend, form)
    check_names(asked, dict.fromkeys(names, 0))
    lists = program.inputs, program.numbers, program.integers, program.outputs
    return stored.text, program.text, *lists, found.gated


@constant
def own_of(graph: int, form: str) -> tuple[str, ...] | None:
    """Names of an epilogue's vectors that may differ by group: rows, or columns in groups of columns.

    None if `graph` is not an epilogue, or has scales of blocks along K, which a stored accumulator no longer has.

    Args:
        graph: `address` of the graph.

    Raises:
        InputError: groups do not support the epilogue.
    """
    found = found_at(graph)
    if not isinstance(found, Graph) or found.scales:
        return None
    check_form(found.finished(), form)
    own = PACKED[form].own if form in PACKED else ()
    return tuple(name for name, kind in found.tensors.items() if kind in own)


def recorded(call: Call, how: str, own: tuple[str, ...]) -> Any:
    """Run a call with gradients through its epilogue.

    Args:
        call: with gathered rows; how: "form:name:tail", as in the op.
        own: names of vectors that may differ by group, from `own_of`.

    Returns:
        D, or an object with an attribute per output.

    Raises:
        InputError: the epilogue does not read these inputs, or one of them is wrong.
    """
    a, b, ends, inputs, graph = call.a, call.b, call.groups.ends, call.inputs, call.graph
    if not is_compiling():
        for x in inputs.keys() & graph.tensors.keys():
            check_tensor(x, inputs[x])
    if unread := [x for x in SCALES if x in inputs and x not in graph.tensors and x not in graph.numbers]:
        rule = "groups of scaled operands have gradients only for bias= and c=, not an epilogue; use torch.no_grad()"
        raise field_error(InputError, unread[0], "...", rule)
    form, name, _ = how.split(":")
    lead = int(name == "cu_seqlens")
    spread = tuple([x for x in own if x in inputs and inputs[x].dim() == 2])
    scalars = tuple([x for x, value in inputs.items() if isinstance(value, Tensor) and value.dim() == 0])
    stored, program, names, numbers, integers, outputs, gated = _steps(
        address(graph), address(call.spec), call.dtype, spread, scalars, call.backend, tuple(inputs), form
    )
    if gated is not None and not is_compiling() and b.shape[-1] % 2:
        raise field_error(
            InputError, "b.shape", tuple(b.shape), "a gated pair needs an even number of columns"
        )
    weights = b if call.main is None else b.detach()
    acc = torch.ops.cutegemm.grouped_mm.default(
        a, weights, ends, [], [1.0], [], stored, f"{form}:{name}:zero"
    )
    if call.main is not None:
        acc = added_to_main_grad(acc, a, ends, how, 1.0, call.by, call.main)
    if gated is None:
        first, parts = acc, {STORED[None]: acc}
    else:
        first, second = acc.chunk(2, -1) if gated == "halves" else (acc[..., ::2], acc[..., 1::2])
        parts = {STORED["gate"]: first, STORED["up"]: second}
    for x in spread:
        check_own(x, inputs[x], ends.shape[0] - lead)
    extent = acc.shape[-1 if form == "columns" else -2]
    if spread:
        wide = {x: _spread(inputs[x], bounds(ends, extent, lead), extent) for x in spread}
        inputs = inputs | {x: y.mT if form == "columns" else y for x, y in wide.items()}
    given = inputs | parts
    if form in _INSIDE:
        inside = inside_groups(ends, extent, form, lead)
        inside = inside[0] if form == "columns" else inside[..., 0]
        given[INSIDE] = inside.to(acc.dtype)
    found = through_the_op(
        acc.new_empty(*acc.shape[:-1], 0), acc.new_empty(0, first.shape[-1]),
        [given[x] for x in names], [float(given[x]) for x in numbers], [given[x] for x in integers], program, outputs,
    )  # fmt: skip
    if form not in _INSIDE or isinstance(found, Tensor):
        return found

    def kept(x: Tensor) -> Tensor:
        """An output; a log-sum-exp of zeros is not 0."""
        return x if x.dim() == acc.dim() else torch.where(inside, x, x.new_zeros(()))

    return Outputs(**{x: kept(getattr(found, x)) for x in outputs})


def _spread(x: Tensor, places: Tensor, extent: int) -> Tensor:
    """The group's row of x (G, N) for each of `extent` rows; rows of no group have any group's.

    It is fp32, so that gradients are added in fp32.
    """
    if x.shape[0] == 0:
        return x.float().sum(0).expand(extent, -1)
    group = torch.searchsorted(places, torch.arange(extent, device=x.device), right=True) - 1
    return x.float()[group.clamp(0, x.shape[0] - 1)]


__all__ = ["own_of", "recorded"]
