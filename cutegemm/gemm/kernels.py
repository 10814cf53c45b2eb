# SPDX-License-Identifier: Apache-2.0
"""The kernels of one spec: chosen for a problem, compiled on first need, kept, tuned, and shown."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm.aot.file import checked_path, write
from cutegemm.compiling import cache, loader, resources
from cutegemm.database import Choice, choose
from cutegemm.errors import InputError, field_error, needing
from cutegemm.gemm import launches
from cutegemm.gemm.kernel import Kernel, explained
from cutegemm.gemm.representatives import representative
from cutegemm.gemm.saving import saved
from cutegemm.problems import Problem, checked, listed
from cutegemm.running import here
from cutegemm.spec import GemmSpec, checked_spec
from cutegemm.tuning import tune

if TYPE_CHECKING:
    from cutegemm.tuning.report import Report


class Kernels:
    """A spec's kernels: everything of a `Gemm` but the run.

    Attributes:
        spec: the declaration.
        plan: of the representative problem (the one given, or 4096^3, aligned, no C).
    """

    def __init__(self, spec: GemmSpec, of: Problem | None = None) -> None:
        self.spec = checked_spec(spec)
        self._representative = representative(spec) if of is None else checked("of", of)
        self._choose_again()

    def _choose_again(self) -> None:
        """Choose for the representative problem; what was chosen before is forgotten."""
        self._chosen = self._choice(self._representative)
        self.plan = self._chosen.plan

    def _choice(self, of: Problem) -> Choice:
        """What a run of a problem would take on the current device."""
        return choose(self.spec, checked("of", of), here.device())

    def kernel(self, of: Problem | None = None) -> Kernel:
        """The kernel that serves a problem (default: the representative), compiled if need be.

        Raises:
            PlanError: the spec cannot serve the problem.
            CompileError: the kernel does not compile.
        """
        return Kernel.of(self.plan if of is None else self._choice(of).plan)

    @property
    def ptx(self) -> str:
        """PTX of the representative kernel."""
        return self.kernel().ptx

    @property
    def sass(self) -> str:
        """Machine code of the representative kernel; needs nvdisasm."""
        return self.kernel().sass

    @property
    def resources(self) -> resources.Resources | None:
        """Resources of the representative kernel; None when its D is empty."""
        return self.kernel().resources

    def workspace_bytes(self, of: Problem) -> int:
        """Device memory that `run` needs for a problem beside its operands, in bytes."""
        return self._choice(of).plan.workspace_bytes

    def warm(self, problems: Iterable[Problem]) -> None:
        """Make every kernel the problems need ready, so that running them compiles and loads nothing.

        Missing kernels compile in parallel subprocesses. On a machine with a Hopper GPU they are also loaded on
        the current device, after which their calls may be captured in a CUDA graph.

        Raises:
            InputError: `problems` is no iterable of problems.
            PlanError: the spec cannot serve a problem.
            CompileError: a kernel does not compile.
        """
        wanted = listed("problems", problems)
        with needing():
            # imports torch
            from cutegemm.running.launcher import current_device, function_for

        index, device = current_device()
        plans = [choose(self.spec, p, device).plan for p in wanted]
        configs = list(dict.fromkeys(step.config for p in plans for step in p.steps))
        cache.ensure(configs)
        if index is not None:
            for config in configs:
                function_for(config, index)

    def save(self, path: str | os.PathLike[str], problems: Iterable[Problem] | None = None) -> Path:
        """Write an artefact: the launches of chosen problems, ready to run without planning, compiling or the DSL.

        `cutegemm.load(path)` runs it. Extents, types, strides and the alignment of addresses are those of the
        problems; addresses, alpha, beta and other numbers are a call's own.

        Args:
            path: of the file, by custom ending in ".cutegemm".
            problems: None is the representative problem.

        Returns:
            The path.

        Raises:
            InputError: `problems` is no iterable of problems, or empty.
            PlanError: the spec cannot serve a problem.
            CompileError: a kernel does not compile.
        """
        wanted = [self._representative] if problems is None else listed("problems", problems)
        target = checked_path(path)
        if not wanted:
            raise field_error(InputError, "problems", [], "must hold at least one problem")
        write(target, saved(self.spec, [self._choice(x).plan for x in wanted]))
        return target

    def tune(self, problems: Iterable[Problem] | None = None, **options: Any) -> Report:
        """`cutegemm.tune` of this spec, for problems or the representative one; later runs take what it found.

        Args:
            problems: None is the representative problem.
            options: of `cutegemm.tune`.

        Raises:
            InputError, HardwareError: as `cutegemm.tune` does.
        """
        report = tune(self.spec, [self._representative] if problems is None else problems, **options)
        self._choose_again()
        return report

    def launches(
        self,
        of: Problem,
        addresses: Mapping[str, int] | None = None,
        workspace: int = 1 << 40,
        **numbers: float,
    ) -> list[loader.Launch]:
        """Run the real host code of a run with CUDA replaced: every launch with its parameters, on any machine.

        Args:
            of: the problem.
            addresses: of a, b, the epilogue's tensors, its outputs and its device scalars, by name; those
                not given are made up, 1 MiB apart.
            workspace: address of the workspace; the plan's counters, if it has some, follow at the next multiple of 256
                bytes.
            numbers: alpha, beta or whatever numbers the epilogue takes; those not given are 1.

        Raises:
            InputError: an argument is of another kind, or names nothing that the launch takes.
            PlanError, CompileError: see `kernel`.
        """
        return launches.recorded(self._choice(of).plan, addresses, workspace, numbers)

    def explain(self, of: Problem | None = None, *, why: bool = False) -> str:
        """What runs for a problem (default: the representative), and why: launches, tile, epilogue with the bytes
        that its inputs and outputs cost, registers, stages, shared memory, and what chose it.

        Args:
            of: the problem.
            why: whether to list every candidate with its predicted time and the reason it lost (`KernelPlan.why`).
        """
        choice = self._chosen if of is None else self._choice(of)
        return explained(choice.plan, None if choice.near else choice.entry, why)

    def __str__(self) -> str:
        return f"{self.spec!r}\n{self.explain()}"

    def __repr__(self) -> str:
        rest = "" if self._representative == representative(self.spec) else f", {self._representative!r}"
        return f"build({self.spec!r}{rest})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or an unpickled one, is planned anew; kernels come from the cache when it first runs."""
        return type(self), (self.spec, self._representative)


__all__ = ["Kernels"]
