# SPDX-License-Identifier: Apache-2.0
"""Runs a case on a backend: checks results, reproducibility, bytes around the outputs, and races."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.combinations.factors import Declared, declared, value_of
from benchmarks.combinations.fields import POINT, POINTS, Case
from benchmarks.combinations.memory import Arena, Placed, fill
from cutegemm import Gemm, GemmSpec, Operand, Tile, plan
from cutegemm.compiling import kernel_cache
from cutegemm.config import Config
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.epilogue.scaling import INTEGERS
from cutegemm.running.arguments import zero_points
from cutegemm.running.numerics.bounds import bound, described
from cutegemm.running.numerics.checked import finished

ALPHA, BETA = 0.75, -0.5
SCALAR, SEED, OFFSET = 0.5, 20_261, 7
# time limit of the emulator for one case in seconds
SECONDS = 120.0
# types that the previous launch computes; it fills others with zeros
WRITTEN = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
POLICIES = ("eager", "lazy", "random")
# K of the previous launch, long enough that it still runs when the case's launch starts
BEFORE_K = 4096


class Wrong(Exception):
    """A run of a case has a wrong result, which the message names."""


@dataclass
class Call:
    """A case's tensors, as arguments of `Gemm.run`.

    Attributes:
        made: spec and problem of the case.
        placed: every tensor by name, including device scalars.
        numbers: scalars passed by value.
    """

    made: Declared
    placed: dict[str, Placed]
    numbers: dict[str, float]

    @property
    def graph(self) -> Graph:
        """The epilogue; the plain one has a graph too."""
        return self.made.graph or linear_combination("c" in dict(self.made.problem.inputs))

    @property
    def read(self) -> tuple[str, ...]:
        """The inputs that a caller passes: all but the sums that a run computes for zero points."""
        return tuple(name for name, _ in self.made.problem.inputs if name not in INTEGERS)

    @property
    def points(self) -> dict[str, Any]:
        """The zero points by name."""
        kinds = {name: value_of(self.made.case, name) for name in POINTS}
        return {
            name: POINT if kind == "tensor" else self.shaped(name)
            for name, kind in kinds.items()
            if kind != "none"
        }

    def shaped(self, name: str) -> torch.Tensor:
        """A tensor with the dimensions that a caller passes."""
        view = self.placed[name].view
        problem = self.made.problem
        if name in POINTS:
            return view.view(-1)
        if name in problem.device_scalars:
            return view.view(())
        kind = self.graph.tensors.get(name, "matrix")
        if kind in ("row", "col"):
            view = view.squeeze(-2 if kind == "row" else -1)
        if kind == "blocks_n":
            view = view.mT
        return view if view.shape[0] > 1 else view[0]

    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a run."""
        problem, case = self.made.problem, self.made.case
        named: dict[str, Any] = dict(self.numbers)
        named |= {name: self.shaped(name) for name in (*self.read, *problem.device_scalars)} | self.points
        if value_of(case, "out") != "new":
            stores = {name: self.shaped(name) for name in dict(problem.outputs)}
            named["out"] = stores["d"] if self.made.graph is None else stores
        return (self.shaped("a"), self.shaped("b")), named


def prepared(case: Case, arena: Arena) -> Call:
    """A case's tensors with random values and poisoned outputs.

    Raises:
        GemmError, Meaningless: the case is illegal.
    """
    made = declared(case)
    problem = made.problem
    arena.reset()
    draw = torch.Generator(arena.device).manual_seed(1)
    placed: dict[str, Placed] = {}
    in_place = value_of(case, "out") == "in_place"
    read = {name: x for name, x in problem.inputs if name not in INTEGERS}
    for name, operand in {"a": problem.a, "b": problem.b, **read, **made.points}.items():
        placed[name] = arena.place(operand)
        fill(placed[name].view, draw)
        if name.startswith("scale_") and operand.dtype is DType.UINT8:
            # exponents of 2 to the power of -7 to 6
            placed[name].view.copy_(placed[name].view % 14 + 120)
        elif name.startswith("scale_"):
            placed[name].view.abs_().add_(0.5)
    for name, operand in problem.outputs:
        placed[name] = placed["c"] if in_place and name == "d" else arena.place(operand)
    for name in problem.device_scalars:
        placed[name] = arena.place(_SCALAR)
        placed[name].view.fill_(SCALAR)
    numbers: dict[str, float] = {"alpha": ALPHA} if made.graph is None else {}
    if made.graph is None and "c" in dict(problem.inputs):
        numbers["beta"] = BETA
    for name, kind in {} if made.graph is None else made.graph.numbers.items():
        if name not in problem.device_scalars:
            numbers[name] = (SEED if name == "seed" else OFFSET) if kind == "integer" else SCALAR
    return Call(made, placed, numbers)


def compare(call: Call, result: Any, read: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Compare the finished outputs of a run with fp64; returns them.

    Args:
        call: of the run.
        result: of the run.
        read: tensors that changed since the run read them, with the values that it read.

    Raises:
        Wrong: names the output and the first wrong element.
    """
    found = finished(result)
    problem = call.made.problem
    values = {name: call.shaped(name) for name in ("a", "b", *call.read, *problem.device_scalars)}
    values |= {name: x.view(values[name].shape) for name, x in read.items()}
    a, b = values.pop("a"), values.pop("b")
    values = zero_points.read(call.made.spec.zero_points, a, b, values | call.points)
    config: Any = plan(call.made.spec, problem).config
    types = {name: x.dtype for name, x in found.items()}
    if set(types) != {x.name for x in call.graph.outputs}:
        raise Wrong(f"outputs are {', '.join(types)}")
    limits = bound(call.graph, a, b, values | call.numbers, types, *described(config))
    for name, x in limits.items():
        if found[name].shape != x.expected.shape:
            raise Wrong(f"{name} is {tuple(found[name].shape)}, not {tuple(x.expected.shape)}")
        said = x.complaint(found[name])
        if said is not None:
            raise Wrong(f"{name}: {said}")
    return found


def around(call: Call) -> dict[str, torch.Tensor]:
    """The bytes that a run must not change."""
    outputs = set(dict(call.made.problem.outputs))
    if value_of(call.made.case, "out") == "in_place":
        outputs.add("c")
    return {name: x.around() if name in outputs else x.bytes.clone() for name, x in call.placed.items()}


def unchanged(now: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> None:
    """Check that a run changed no bytes of `around`.

    Raises:
        Wrong: names the tensor.
    """
    for name, x in now.items():
        if not torch.equal(x, before[name]):
            count = int((x != before[name]).sum())
            raise Wrong(f"{count} bytes in or around {name} were written outside the outputs")


def emulated(case: Case) -> None:
    """Run a case on the emulator, after a launch that may write everything but constant operands.

    Raises:
        Wrong: a result is wrong, other memory was written, or the race detector reports a finding.
        GemmError: the case is refused, or the kernel deadlocks.
    """
    from cutegemm import emulator

    call = prepared(case, Arena("cpu"))
    made = call.made
    rng = random.Random(str(sorted(made.case.items())))
    operands, named = call.given()
    read = _copies(call)
    before = around(call)
    options = emulator.Options(
        races=True, policy=rng.choice(POLICIES), seed=rng.randrange(1000), max_seconds=SECONDS, progress=False
    )
    constant = [call.shaped(name) for name in made.fields.get("constant", ())]
    run = emulator.run(Gemm(made.spec, made.problem), *operands, options=options, constant=constant, **named)
    if run.findings:
        raise Wrong(
            f"{len(run.findings)} findings ({options.policy}, {options.seed}), first: {run.findings[0]}"
        )
    compare(call, run.d, read)
    unchanged(around(call), before)


def kernels(case: Case) -> list[Config]:
    """The configs of a case's launches.

    Raises:
        GemmError, Meaningless: the case is refused or illegal.
    """
    made = declared(case)
    return [step.config for step in Gemm(made.spec, made.problem).plan.steps]


def on_gpu(case: Case, arena: Arena, told: Callable[[str], None] = lambda stage: None) -> None:
    """Run a case on the GPU, after a launch that writes the case's tensor, and twice unless D is in place.

    Args:
        case: to run.
        arena: on the GPU; on the CPU, torch replaces the kernels.
        told: called with the next stage: "compiling", "running", "comparing".

    Raises:
        Wrong: a result is wrong or not reproducible, or other memory was written.
        GemmError: the case is refused.
    """
    told("compiling")
    call = prepared(case, arena)
    made = call.made
    gemm = Gemm(made.spec, made.problem)
    cuda = arena.device == "cuda"
    settle = torch.cuda.synchronize if cuda else lambda: None
    for step in gemm.plan.steps if cuda else ():
        kernel_cache.artifact(step.config)
    operands, named = call.given()
    write, read = _writer(call), _copies(call)
    if write is not None:
        # compiles, and computes the values that the run will read
        name, work = write
        work()
        settle()
        if name not in dict(made.problem.outputs):
            read[name] = call.shaped(name).clone()
        call.placed[name].view.copy_(torch.full((), torch.nan))
    told("running")
    before = around(call)
    settle()
    if write is not None:
        write[1]()
    if value_of(case, "before") == "itself" and value_of(case, "out") != "in_place":
        gemm.run(*operands, **named)
    result = gemm.run(*operands, **named)
    in_place = value_of(case, "out") == "in_place"
    first = None
    if not in_place:
        first = {name: x.clone() for name, x in finished(result).items()}
        result = gemm.run(*operands, **named)
    settle()
    told("comparing")
    found = compare(call, result, read)
    if (
        write is not None
        and write[0] not in dict(made.problem.outputs)
        and not (in_place and write[0] == "c")
    ):
        before[write[0]] = around(call)[write[0]]
    unchanged(around(call), before)
    if first is not None and value_of(case, "split_reduction") != "atomic":
        for name, x in found.items():
            if not torch.equal(bits(x), bits(first[name])):
                raise Wrong(f"{name} has other bits on a second run")
    settle()


def _copies(call: Call) -> dict[str, torch.Tensor]:
    """Copies of inputs that a run overwrites."""
    if value_of(call.made.case, "out") == "in_place":
        return {"c": call.shaped("c").clone()}
    return {}


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def _writer(call: Call) -> tuple[str, Callable[[], Any]] | None:
    """The tensor that the previous launch writes, and the launch; None without one.

    The launch takes long, and triggers its dependent launch at its start.
    """
    what = value_of(call.made.case, "before")
    problem = call.made.problem
    if what in ("nothing", "itself"):
        return None
    name = {
        "input": next(iter(call.read), ""),
        "scalar": next(iter(problem.device_scalars), ""),
        "out": next(iter(dict(problem.outputs)), ""),
    }.get(what, what)
    view = call.placed[name].view
    if not view.numel():
        return None
    if view.dtype not in WRITTEN:
        return name, lambda: view.copy_(torch.zeros((), device=view.device))
    draw = torch.Generator(view.device).manual_seed(2)
    x, y = (
        torch.randn(*s, generator=draw, device=view.device).mul_(BEFORE_K**-0.25).bfloat16()
        for s in ((view.shape[-2], BEFORE_K), (BEFORE_K, view.shape[-1]))
    )
    gemm = _writing(WRITTEN[view.dtype])
    target = view if view.shape[0] > 1 else view[0]
    if view.shape[0] > 1:
        x = x.expand(view.shape[0], *x.shape)
    return name, lambda: gemm.run(x, y, out=target)


@functools.cache
def _writing(d_dtype: str) -> Gemm:
    return Gemm(GemmSpec(tile=Tile(64, 64, 64), swap=False, store="direct", trigger="start", d_dtype=d_dtype))


_SCALAR = Operand(dtype=DType.FP32, rows=1, cols=1, strides=(1, 1, 1), align=4)
__all__ = ["Call", "Wrong", "compare", "emulated", "kernels", "on_gpu", "prepared"]
