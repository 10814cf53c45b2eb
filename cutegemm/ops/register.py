# SPDX-License-Identifier: Apache-2.0
"""The op `cutegemm::gemm` and its implementations for torch's dispatcher. Importing this module registers it.

It has three overloads: `gemm` returns D, `gemm.many` returns all outputs of the epilogue, and `gemm.out` writes them
into given tensors. All take (a, b, inputs, numbers, integers, program), the last as text (`Program`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cutegemm.errors import InputError, field_error
from cutegemm.gemm import Gemm, eager
from cutegemm.ops.compiled import TAGS, described
from cutegemm.ops.dispatch import DEVICES, direct, recorded, redispatched
from cutegemm.ops.fallback import HALF, autocast_to
from cutegemm.ops.gradients.autograd import Final, Product
from cutegemm.ops.layouts import as_called, described_outputs, matrices
from cutegemm.ops.program import Program, decode
from cutegemm.ops.serve import serve
from cutegemm.ops.shortcuts import served
from cutegemm.ops.transforms import flops
from cutegemm.ops.transforms.batching import batched
from cutegemm.running import tangents
from cutegemm.running.arguments.describe import shown
from cutegemm.running.arguments.results import Outputs
from cutegemm.running.backends.uncompiled import uncompiled

NAMESPACE = "cutegemm"
# the dispatch keys below autograd of a call that only a device's implementation is left to see; tensors of a subclass,
# functional wrappers, negated views and tensors of zeros without memory have others
_BELOW = torch._C._after_ADInplaceOrView_keyset
_ALONE = frozenset(
    torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, x.upper())).raw_repr() for x in DEVICES
)
_ARGUMENTS = "Tensor a, Tensor b, Tensor[] inputs, float[] numbers, SymInt[] integers, str program"

library = torch.library.Library(NAMESPACE, "DEF")
library.define(f"gemm({_ARGUMENTS}) -> Tensor", tags=TAGS)
library.define(f"gemm.many({_ARGUMENTS}) -> Tensor[]", tags=TAGS)
library.define(f"gemm.out({_ARGUMENTS}, *, Tensor(a!)[] out) -> ()", tags=TAGS)

OVERLOADS = (
    torch.ops.cutegemm.gemm.default,
    torch.ops.cutegemm.gemm.many,
    torch.ops.cutegemm.gemm.out,
)


def _alone(text: str) -> Program:
    """The program of a text; its only output must be D.

    Raises:
        InputError: it has other outputs.
    """
    program = decode(text)
    if not program.alone:
        rule = "has other outputs than d: call gemm.many"
        raise field_error(InputError, "epilogue", ", ".join(program.outputs), rule)
    return program


def _one(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str) -> torch.Tensor:
    return served(_alone(program), a, b, inputs, numbers, integers)[0]


def _many(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str) -> list[torch.Tensor]:
    return list(served(decode(program), a, b, inputs, numbers, integers))


def _out(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str, *, out: Any) -> None:
    known = decode(program)
    serve(known, a, b, inputs, numbers, integers, _given(known, out))


def _given(program: Program, out: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    if len(out) != len(program.outputs):
        rule = f"must have one tensor for each of {', '.join(program.outputs)}"
        raise field_error(InputError, "out", len(out), rule)
    return dict(zip(program.outputs, out))


def _described(program: Program, a: Any, b: Any, inputs: Any) -> list[torch.Tensor]:
    try:
        return described_outputs(program, matrices(program, a, b, inputs))
    except InputError as error:
        raise as_called(program, error, a, b) from None


def _fake_one(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str) -> torch.Tensor:
    known = _alone(program)
    return _described(known, a, b, inputs)[0]


def _fake_many(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str) -> list[torch.Tensor]:
    known = decode(program)
    return _described(known, a, b, inputs)


def _fake_out(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str, *, out: Any) -> None:
    known = decode(program)
    wanted = _described(known, a, b, inputs)
    for (name, given), x in zip(_given(known, out).items(), wanted):
        check_fake_out(shown(name), given, x)


def check_fake_out(name: str, given: torch.Tensor, wanted: torch.Tensor) -> None:
    """Check the shape of a given output against the result's; symbolic extents become conditions of the graph.

    Raises:
        InputError: they differ.
    """
    pairs = list(zip(given.shape, wanted.shape))
    differ = [n != m for n, m in pairs if type(n) is int and type(m) is int]
    if given.dim() != wanted.dim() or any(differ):
        raise field_error(InputError, f"{name}.shape", tuple(given.shape), f"must be {tuple(wanted.shape)}")
    for n, m in pairs:
        torch._check(n == m, lambda: f"{name}: must have the shape of the result")


def _tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of a call: the operands, then the epilogue's inputs."""
    return [*args[:2], *next(x for x in args if isinstance(x, (list, tuple)))]


def _named(args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The same tensors with their names in the call."""
    # the program is the first text among the arguments of each op
    program = decode(next(x for x in args if isinstance(x, str)))
    operands = ("x", "weight") if program.form == "linear" else ("a", "b")
    yield from zip((*operands, *program.inputs), _tensors(args), strict=True)


def _recorded(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether autograd must record a call."""
    return torch.is_grad_enabled() and any([x.requires_grad for x in tensors])


def autograd_of(op: Any, record: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """The autograd implementation of an overload that returns new tensors.

    Args:
        op: the overload.
        record: the call with a gradient.
        real: the implementation for a device, which is called without the dispatcher where nothing else must see it.
    """

    @uncompiled
    def kernel(keyset: Any, *args: Any) -> Any:
        tensors = _tensors(args)
        tangents.refuse(_named(args))
        if _recorded(tensors):
            return recorded(record, *args)
        if (keyset & _BELOW).raw_repr() in _ALONE and direct(*tensors):
            return real(*args)
        return redispatched(op, keyset, *args)

    return kernel


def autograd_out_of(op: Any) -> Callable[..., Any]:
    """The autograd implementation of an overload that writes into given tensors."""

    def kernel(keyset: Any, *args: Any, out: Any) -> None:
        tangents.refuse([*_named(args), *(("out", x) for x in out)])
        if _recorded([*_tensors(args), *out]):
            rule = "a call with out= has no gradient; use torch.no_grad(), detach(), or a call without out"
            raise field_error(InputError, "out", "...", rule)
        redispatched(op, keyset, *args, out=out)

    return kernel


def writing(op: Any) -> Callable[..., Any]:
    """The implementation of an `out` overload that increments the version counters of `out`."""

    def kernel(keyset: Any, *args: Any, out: Any) -> None:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, out=out)
        for x in out:
            torch.autograd.graph.increment_version(x)

    return kernel


def refuse_mapped_out(*args: Any, out: Any) -> None:
    """The vmap rule of an `out` overload, which torch does not support, since `out` is a keyword argument.

    Raises:
        InputError: always.
    """
    rule = "vmap does not support out=; use a batch of matrices, or a call without out"
    raise field_error(InputError, "out", "...", rule)


def _record(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str) -> Any:
    """Run a call that autograd records: D, or all outputs in a tuple."""
    known = decode(program)
    function: Any = Final if known.final else Product
    return function.apply((known, numbers, integers), a, b, *inputs)


def _record_many(*args: Any) -> list[torch.Tensor]:
    found = _record(*args)
    return list(found) if isinstance(found, tuple) else [found]


def _autocast_of(op: Any, device: str) -> Any:
    """The autocast implementation: operands are cast to the autocast type; the epilogue's inputs are not."""
    exclude = torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutocastCUDA if device == "cuda" else torch._C.DispatchKey.AutocastCPU
    )

    def kernel(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str, **out: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(exclude):
            if dtype in HALF and not out:
                a, b = autocast_to(dtype, a), autocast_to(dtype, b)
            return op(a, b, inputs, numbers, integers, program, **out)

    return kernel


def _register() -> None:
    kernels: dict[str, tuple[Any, Any]] = {
        "gemm": (_one, _fake_one), "gemm.many": (_many, _fake_many), "gemm.out": (_out, _fake_out)
    }  # fmt: skip
    for (name, (real, fake)), op in zip(kernels.items(), OVERLOADS):
        for device in DEVICES:
            library.impl(name, real, device.upper())
        out = name == "gemm.out"
        traced = fake if out else described(op, real, fake)
        torch.library.register_fake(f"{NAMESPACE}::{name}", traced, lib=library)
        record = _record if op is OVERLOADS[0] else _record_many
        recorded = autograd_out_of(op) if out else autograd_of(op, record, real)
        library.impl(name, recorded, "Autograd", with_keyset=True)
        for device in DEVICES:
            library.impl(name, _autocast_of(op, device), f"Autocast{device.upper()}")
        if not out:
            torch.library.register_vmap(f"{NAMESPACE}::{name}", batched(op), lib=library)
    library.impl("gemm.out", writing(OVERLOADS[2]), "ADInplaceOrView", with_keyset=True)
    library.impl("gemm.out", refuse_mapped_out, "FuncTorchBatched")
    flops.register()
    # transforms, exported programs and sharded modules look for tensors in this
    pytree.register_pytree_node(
        Outputs,
        lambda outputs: (list(vars(outputs).values()), list(vars(outputs))),
        lambda tensors, names: Outputs(**dict(zip(names, tensors))),
        serialized_type_name="cutegemm.Outputs",
        flatten_with_keys_fn=lambda outputs: (
            [(pytree.GetAttrKey(name), x) for name, x in vars(outputs).items()],
            list(vars(outputs)),
        ),
    )


_register()
# torch.compile may run a call around a graph break, and must not compile its planning
eager.leave(Gemm.__init__)

__all__ = [
    "NAMESPACE",
    "OVERLOADS",
    "autograd_of",
    "autograd_out_of",
    "check_fake_out",
    "library",
    "refuse_mapped_out",
    "writing",
]
