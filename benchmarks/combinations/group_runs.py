# SPDX-License-Identifier: Apache-2.0
"""Runs a grouped case on a backend: checks every group, rows of no group, other memory, and races."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.combinations.factors import Meaningless
from benchmarks.combinations.fields import Case
from benchmarks.combinations.group_factors import TOKENS, Declared, declared, value_of
from benchmarks.combinations.memory import Arena, Placed, fill
from benchmarks.combinations.runs import (
    ALPHA,
    BETA,
    OFFSET,
    POLICIES,
    SCALAR,
    SECONDS,
    SEED,
    Wrong,
    bits,
    unchanged,
)
from cutegemm import Groups
from cutegemm.compiling import kernel_cache
from cutegemm.config import Config
from cutegemm.errors import GemmError
from cutegemm.ops.groups.row_sum import added
from cutegemm.running.grouped_mm import GroupedGemm
from cutegemm.running.numerics.bounds import bound, described
from cutegemm.running.numerics.checked import finished
from cutegemm.running.numerics.group_reference import along_k

# row indices outside the matrix, and a repeated row; groups have at least this many rows
STRANGE = (-1, TOKENS, -(2**31), 2**31 - 1, 5)
TYPES = {"int32": torch.int32, "int64": torch.int64}


@dataclass
class Call:
    """A case's tensors, as arguments of `GroupedGemm.run`; every tensor is placed as (batches, rows, columns)."""

    made: Declared
    gemm: GroupedGemm
    placed: dict[str, Placed]
    numbers: dict[str, Any]
    groups: Groups

    def get(self, name: str) -> Any:
        """A field's value."""
        return value_of(self.made.case, name)

    def shaped(self, name: str) -> torch.Tensor:
        """A tensor with the dimensions that a caller passes."""
        view, kind = self.placed[name].view, self.made.graph.tensors.get(name, "matrix")
        if kind in ("row", "col"):
            view = view.squeeze(-2 if kind == "row" else -1)
        form = self.get("kind")
        batched = {"a": form in ("masked", "columns"), "b": form in ("rows", "masked")}.get(name)
        if batched is None:
            batched = (
                form in ("masked", "depth")
                if kind == "matrix" or name in self.made.outputs
                else view.shape[0] > 1
            )
        if form == "masked" and kind in ("col", "blocks_m"):
            batched = True
        return view if batched else view[0]

    def given(self) -> tuple[Any, ...]:
        """Arguments of a run: a, b, groups, inputs of the epilogue by name, out."""
        named = self.numbers | {name: self.shaped(name) for name in self.made.graph.tensors}
        out = None
        if self.get("out") != "new":
            out = {name: self.shaped(name) for name in self.made.outputs}
        return self.shaped("a"), self.shaped("b"), self.groups, named, out


def prepared(case: Case, arena: Arena, filled: bool = True) -> Call:
    """A case's tensors with random values and poisoned outputs; all are poisoned unless `filled`.

    Raises:
        GemmError, Meaningless: the case is illegal.
    """
    made = declared(case)
    gemm = GroupedGemm(made.spec, made.graph)
    arena.reset()
    draw = torch.Generator(arena.device).manual_seed(1)
    placed: dict[str, Placed] = {}
    in_place = value_of(case, "out") == "in_place"
    for name, operand in made.tensors.items():
        if in_place and name == "d":
            placed[name] = placed["c"]
            continue
        placed[name] = arena.place(operand)
        if not filled:
            continue
        if name.startswith("scale_"):
            view = placed[name].view
            view.copy_(torch.rand(view.shape, generator=draw, device=view.device) + 0.5)
        elif name not in made.outputs:
            fill(placed[name].view, draw)
    numbers: dict[str, Any] = {}
    for name, kind in made.graph.numbers.items():
        held = {"alpha": ALPHA, "beta": BETA}.get(name, SCALAR)
        numbers[name] = (SEED if name == "seed" else OFFSET) if kind == "integer" else held
    kind = TYPES[value_of(case, "index")]
    ends = torch.tensor(made.ends, dtype=kind, device=arena.device)
    told = "counts" if value_of(case, "kind") == "masked" else value_of(case, "told")
    rows = None
    if value_of(case, "gather") != "none":
        rows = torch.randint(0, TOKENS, (made.extent,), generator=torch.Generator().manual_seed(2))
        every = max(1, made.extent // len(STRANGE))
        rows[: every * len(STRANGE) : every] = torch.tensor(STRANGE)
        rows = rows.to(TYPES[value_of(case, "gather")]).to(arena.device)
    groups = Groups(**{told: ends}, rows=rows, tail=value_of(case, "tail"))
    return Call(made, gemm, placed, numbers, groups)


def legal(case: Case) -> bool:
    """Whether the planner accepts a case."""
    try:
        call = prepared(case, Arena("cpu"), filled=False)
        call.gemm.plan(*call.given())
    except (Meaningless, GemmError):
        return False
    return True


def places(call: Call) -> list[tuple[int, int, int]]:
    """(group, begin, end) of every group along the grouped axis."""
    ends = [min(max(x, 0), call.made.extent) for x in call.made.ends]
    if call.get("kind") == "masked":
        return [(g, 0, x) for g, x in enumerate(ends)]
    begins = ends if call.get("told") == "cu_seqlens" else [0, *ends]
    kept = list(itertools.accumulate(begins, max))
    return [(g, x, y) for g, (x, y) in enumerate(itertools.pairwise(kept))]


def compare(call: Call, result: Any, read: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
    """Compare the outputs with fp64, group by group, and check rows of no group.

    Args:
        call: of the run.
        result: of the run.
        read: tensors that changed since the run read them, with the values that it read.
        before: given outputs before the run.

    Raises:
        Wrong: names output, group and element.
    """
    found, kind = finished(result), call.get("kind")
    config: Any = call.gemm.plan(*call.given()).config
    a, b, _, named, _ = call.given()
    named |= read
    if call.groups.rows is not None:
        index = call.groups.rows.long()
        good = (index >= 0) & (index < a.shape[0])
        a = torch.where(good[:, None], a[index.clamp(0, a.shape[0] - 1)].float(), 0.0).to(a.dtype)
    types = {name: x.dtype for name, x in found.items()}
    covered = {name: torch.zeros(x.shape, dtype=torch.bool, device=x.device) for name, x in found.items()}
    for group, first, end in places(call):
        place: Any = (slice(first, end),) if kind == "rows" else (group,)
        if kind in ("masked", "columns"):
            place = (group, slice(0, end)) if kind == "masked" else (slice(None), slice(first, end))
        if kind != "depth" and first == end:
            continue
        block = 0
        if kind == "depth":
            left, right, block = along_k(a, b, first, end, bool(call.made.graph.scales))
        elif kind == "columns":
            left, right = a[group], b[:, first:end]
        else:
            left, right = (a[first:end] if kind == "rows" else a[group, :end]), b[group]
        own = {name: _of(call, name, x, group, place) for name, x in named.items()}
        own |= {x.name: own[x.name][..., block:] for x in call.made.graph.scales}
        origin = {"rows": (0, first, 0), "columns": (0, 0, first)}.get(kind, (group, 0, 0))
        limits = bound(call.made.graph, left, right, own, types, *described(config), origin)
        for name, limit in limits.items():
            # a reduction of groups of columns has one axis
            own = place[-1:] if found[name].dim() < len(place) else place
            said = limit.complaint(found[name][own])
            if said is not None:
                raise Wrong(f"{name} of group {group} [{first}, {end}): {said}")
            covered[name][own] = True
    for name, x in found.items():
        rest = x[~covered[name]]
        stored = name in call.made.outputs
        if (call.get("tail") == "zero" or not stored) and rest.float().any():
            raise Wrong(f"{name}: {int((rest != 0).sum())} elements of rows of no group are not 0")
        if (
            stored
            and call.get("tail") == "undefined"
            and not torch.equal(bits(rest), bits(before[name][~covered[name]]))
        ):
            raise Wrong(f"{name}: rows of no group were written")


def _of(call: Call, name: str, x: Any, group: int, place: Any) -> Any:
    """The part of an epilogue input that belongs to one group."""
    kind, form = call.made.graph.tensors.get(name), call.get("kind")
    if kind is None:
        return x
    batched = x.dim() == (2 if kind in ("row", "col") else 3)
    if form == "rows":
        if kind in ("row", "blocks_n"):
            return x[group] if batched else x
        return x[place]
    if form == "columns":
        if kind in ("col", "blocks_m"):
            return x[group] if batched else x
        return x[place] if kind == "matrix" else x[place[1]]
    x = x[group] if batched else x
    return x[place[1]] if form == "masked" and kind not in ("row", "blocks_n") else x


def around(call: Call) -> dict[str, torch.Tensor]:
    """The bytes that a run must not change."""
    outputs = {*call.made.outputs, *(["c"] if call.get("out") == "in_place" else [])}
    return {name: x.around() if name in outputs else x.bytes.clone() for name, x in call.placed.items()}


def _run(call: Call, run: Callable[[], Any], settle: Callable[[], None] = lambda: None) -> None:
    """Run a case and check everything.

    Raises:
        Wrong: a result is wrong, or other memory was written.
    """
    read = {"c": call.shaped("c").clone()} if call.get("out") == "in_place" else {}
    beside = around(call)
    before = {name: call.shaped(name).clone() for name in call.made.outputs}
    result = run()
    settle()
    compare(call, result, read, before)
    if call.get("scatter"):
        scatter(call, finished(result)["d"])
    unchanged(around(call), beside)


def scatter(call: Call, d: torch.Tensor) -> None:
    """Sum the rows of a result by index, as `grouped_mm` does, and compare with fp64.

    Raises:
        Wrong: a sum is wrong.
    """
    count = d.shape[0]
    # several rows per index, and indices out of range
    index = torch.randint(-1, count // 2 + 1, (count,), generator=torch.Generator().manual_seed(3))
    index[::7] = count
    good = (index >= 0) & (index < count)
    wanted, size = (
        torch.zeros(count, d.shape[1], dtype=torch.float64).index_add_(0, index[good], x.cpu().double()[good])
        for x in (d, d.float().abs())
    )
    kind = d.dtype if d.dtype.is_floating_point and d.dtype.itemsize > 1 else torch.float32
    found = added(d, index.to(d.device), count).to(kind).cpu().double()
    off = (found - wanted).abs() > size * d.shape[0] * 2.0**-23 + wanted.abs() * torch.finfo(kind).eps
    # sums that overflow the result's type or have non-finite terms are not compared
    known = wanted.isfinite() & (wanted.abs() < torch.finfo(kind).max)
    if (off & known).any():
        raise Wrong(f"{int((off & known).sum())} sums of scattered rows are off")


def emulated(case: Case) -> None:
    """Run a case on the emulator with the race detector.

    Raises:
        Wrong: a result is wrong, other memory was written, or the race detector reports a finding.
        GemmError: the case is refused, or the kernel deadlocks.
    """
    from cutegemm import emulator

    call = prepared(case, Arena("cpu"))
    rng = random.Random(str(sorted(call.made.case.items())))
    options = emulator.Options(
        races=True, policy=rng.choice(POLICIES), seed=rng.randrange(1000), max_seconds=SECONDS, progress=False
    )

    def run() -> Any:
        found = emulator.run(call.gemm, *call.given(), options=options)
        if found.findings:
            said = f"({options.policy}, {options.seed}), first: {found.findings[0]}"
            raise Wrong(f"{len(found.findings)} findings {said}")
        return found.d

    _run(call, run)


def kernels(case: Case) -> list[Config]:
    """The configs of a case's launches.

    Raises:
        GemmError, Meaningless: the case is refused or illegal.
    """
    call = prepared(case, Arena("cpu"), filled=False)
    return [step.config for step in call.gemm.plan(*call.given()).steps]


def on_gpu(case: Case, arena: Arena, told: Callable[[str], None] = lambda stage: None) -> None:
    """Run a case on the GPU, twice unless D is in place.

    Raises:
        Wrong: a result is wrong or not reproducible, or other memory was written.
        GemmError: the case is refused.
    """
    told("compiling")
    call, cuda = prepared(case, arena), arena.device == "cuda"
    for step in call.gemm.plan(*call.given()).steps if cuda else ():
        kernel_cache.artifact(step.config)
    settle = torch.cuda.synchronize if cuda else lambda: None
    settle()
    told("running")

    def run() -> Any:
        if call.get("out") == "in_place":
            return call.gemm.run(*call.given())
        first = {name: x.clone() for name, x in finished(call.gemm.run(*call.given())).items()}
        result = call.gemm.run(*call.given())
        settle()
        for name, x in finished(result).items() if call.get("tail") == "zero" else ():
            if not torch.equal(bits(x), bits(first[name])):
                raise Wrong(f"{name} has other bits on a second run")
        told("comparing")
        return result

    _run(call, run, settle)


def weight(case: Case) -> int:
    """The approximate arithmetic of a case."""
    made = declared(case)
    a, b = made.tensors["a"], made.tensors["b"]
    return a.rows * a.cols * b.cols * max(a.batch, 1)


__all__ = ["emulated", "kernels", "legal", "on_gpu", "prepared", "weight"]
