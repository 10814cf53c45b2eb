# SPDX-License-Identifier: Apache-2.0
"""Runs an artefact's recipes: on a GPU through the driver API, on the CPU in the emulator."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import cast

import torch

from cutegemm.aot.artefact import Artefact, Recipe
from cutegemm.aot.driver import LoadedKernels
from cutegemm.aot.recipe import WORKSPACE, KernelBinary
from cutegemm.arch.device import Device
from cutegemm.emulator import Step
from cutegemm.errors import CompileError, HardwareError, PlanError, field_error
from cutegemm.problems import Operand, Problem
from cutegemm.running.arguments.call import Request
from cutegemm.running.backends import emulator_steps
from cutegemm.running.backends.emulated import Emulated
from cutegemm.running.backends.launcher import Launcher, device_of
from cutegemm.running.backends.torch_backend import Described, Referenced
from cutegemm.running.kind import Kind, Prepared


class Replay:
    """An artefact's recipes, and its kernels on each device that has loaded them."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self._lock = threading.Lock()
        self._loaded: dict[int, LoadedKernels] = {}

    def recipe(self, problem: Problem, device: Device) -> Recipe:
        """The recipe of a call's problem.

        Raises:
            HardwareError: the GPU has fewer SMs than the plans need.
            PlanError: the artefact has no recipe for this problem.
        """
        if device.sms < self.artefact.sms:
            rule = f"the artefact was saved for {self.artefact.gpu} with {self.artefact.sms} SMs"
            raise HardwareError(f"{device.name} has {device.sms} SMs; {rule}")
        for found in self.artefact.recipes:
            if serves(found.problem, problem):
                return found
        shapes = sorted({(x.problem.m, x.problem.n, x.problem.k) for x in self.artefact.recipes})
        wanted = (problem.m, problem.n, problem.k)
        nearest = min(shapes, key=lambda x: sum(abs(i - j) for i, j in zip(x, wanted)), default=None)
        rule = "no recipe of the artefact has these extents, types, strides and alignments"
        if nearest == wanted:
            recipe = next(
                x for x in self.artefact.recipes if (x.problem.m, x.problem.n, x.problem.k) == wanted
            )
            rule = f"the artefact supports this problem if {_difference(recipe.problem, problem)}"
        raise field_error(PlanError, "(m, n, k)", wanted, rule, nearest)

    def make(self, chosen: str, kind: Kind, request: Request) -> Prepared:
        """The callable for a kind of call on a backend."""
        if chosen == "gpu":
            return Replayed(self, kind, request)
        if chosen == "emulator":
            return ReplayedHere(self.artefact.kernels, kind)
        return Described(kind) if chosen == "meta" else Referenced(kind)

    def loaded(self, index: int) -> LoadedKernels:
        """The kernels on a device."""
        with self._lock:
            if index not in self._loaded:
                if torch.cuda.is_current_stream_capturing():
                    raise CompileError(
                        "the artefact's kernels are not on this device and a CUDA graph is being captured: "
                        "run the same call once before the capture"
                    )
                with torch.cuda.device(index):
                    self._loaded[index] = LoadedKernels(self.artefact.kernels, index)
            return self._loaded[index]


class Replayed(Launcher):
    """Runs a kind of call on a Hopper GPU by an artefact's recipe."""

    def __init__(self, replay: Replay, kind: Kind, request: Request) -> None:
        self.replay = replay
        super().__init__(kind, request)

    def _make_ready(self) -> None:
        recipe, loaded = cast(Recipe, self.kind.plan), self.replay.loaded(self.index)
        with torch.cuda.device(self.index):
            self.steps = [loaded.launcher(x) for x in recipe.steps]

    def _launch(
        self, addresses: dict[str, int], workspace: int, numbers: dict[str, float], stream: int
    ) -> None:
        addresses[WORKSPACE] = workspace
        for step in self.steps:
            step(addresses, numbers, stream)


class ReplayedHere(Emulated):
    """Runs a kind of call in the emulator: the artefact's PTX with the parameters of its recipe."""

    def __init__(self, kernels: Sequence[KernelBinary], kind: Kind) -> None:
        super().__init__(kind)
        self.kernels = kernels

    def _steps(self, addresses: dict[str, int], workspace: int, numbers: dict[str, float]) -> list[Step]:
        recipe = cast(Recipe, self.kind.plan)
        return emulator_steps.of_recipe(recipe, self.kernels, addresses, workspace, numbers)


def serves(saved: Problem, given: Problem) -> bool:
    """Whether the recipe of a saved problem supports a given one: equal, except that addresses may be more aligned."""
    return _like(saved, saved) == _like(given, saved)


def _like(x: Problem, saved: Problem) -> Problem:
    """A problem with its alignments lowered to the saved problem's."""

    def operand(mine: Operand, other: Operand) -> Operand:
        return dataclasses.replace(mine, align=min(mine.align, other.align))

    others = {**dict(saved.inputs), **dict(saved.outputs)}
    return dataclasses.replace(
        x,
        a=operand(x.a, saved.a),
        b=operand(x.b, saved.b),
        inputs=tuple((name, operand(y, others.get(name, y))) for name, y in x.inputs),
        outputs=tuple((name, operand(y, others.get(name, y))) for name, y in x.outputs),
    )


def _difference(saved: Problem, given: Problem) -> str:
    """The first operand whose layout differs, as text."""
    pairs = [
        (name, x, y)
        for name, x, y in (
            ("a", saved.a, given.a),
            ("b", saved.b, given.b),
            *((n, x, dict(given.inputs).get(n)) for n, x in saved.inputs),
            *((n, x, dict(given.outputs).get(n)) for n, x in saved.outputs),
        )
        if y is None or dataclasses.replace(y, align=min(x.align, y.align)) != x
    ]
    if not pairs:
        return (
            f"the batch is {saved.batch} and the inputs are {', '.join(n for n, _ in saved.inputs) or 'none'}"
        )
    name, x, y = pairs[0]
    how = f"{x.dtype.value}, strides {x.strides}, {x.align}-byte aligned"
    other = "missing" if y is None else f"{y.dtype.value}, strides {y.strides}, {y.align}-byte aligned"
    return f"{name} is {how}; it is {other}"


__all__ = ["Replay", "device_of", "serves"]
