# SPDX-License-Identifier: Apache-2.0
"""The kernels of one spec: planned per problem, compiled on first use, cached, tuned and inspected."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm import checks
from cutegemm.aot.artefact import checked_path, write
from cutegemm.compiling import kernel_cache, loader, resources
from cutegemm.database import Choice, choose
from cutegemm.errors import InputError, field_error, needing
from cutegemm.gemm import recorded_launches
from cutegemm.gemm.planned_kernel import Kernel, explained
from cutegemm.gemm.representatives import representative
from cutegemm.gemm.saving import saved
from cutegemm.problems import Problem, checked, listed
from cutegemm.running.backends import here
from cutegemm.spec import GemmSpec, checked_spec
from cutegemm.tuning import tune

if TYPE_CHECKING:
    from cutegemm.tuning.outcomes import Report


class Kernels:
    """A spec's kernels: all of `Gemm` except `run`.

    Attributes:
        spec: the declaration.
        plan: of the representative problem (the one given, or 4096^3, aligned, no C).
    """

    def __init__(self, spec: GemmSpec, of: Problem | None = None) -> None:
        self.spec = checked_spec(spec)
        self._representative = representative(spec) if of is None else checked("of", of)
        self._choose_again()

    def _choose_again(self) -> None:
        """Plan the representative problem again and drop earlier choices."""
        self._chosen = self._choice(self._representative)
        self.plan = self._chosen.plan

    def _choice(self, of: Problem) -> Choice:
        """The choice that a run of a problem would use on the current device."""
        return choose(self.spec, checked("of", of), here.device())

    def kernel(self, of: Problem | None = None) -> Kernel:
        """The kernel that runs a problem (default: the representative one), compiled if necessary.

        Raises:
            PlanError: the spec does not support the problem.
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
        """Resources of the representative kernel; None if its D is empty."""
        return self.kernel().resources

    def workspace_bytes(self, of: Problem) -> int:
        """Device memory in bytes that `run` needs for a problem besides its operands."""
        return self._choice(of).plan.workspace_bytes

    def warm(self, problems: Iterable[Problem]) -> None:
        """Compile and load every kernel of these problems, so that their first runs do neither.

        Six or more missing kernels compile in parallel. On a machine with a Hopper GPU they are also loaded on the
        current device; then their calls can be captured in a CUDA graph.

        Raises:
            InputError: `problems` is not an iterable of problems.
            PlanError: the spec does not support a problem.
            CompileError: a kernel does not compile.
        """
        wanted = listed("problems", problems)
        with needing():
            # imports torch
            from cutegemm.running.backends.launcher import current_device, function_for

        index, device = current_device()
        plans = [choose(self.spec, p, device).plan for p in wanted]
        configs = list(dict.fromkeys(step.config for p in plans for step in p.steps))
        kernel_cache.ensure(configs)
        if index is not None:
            for config in configs:
                function_for(config, index)

    def save(self, path: str | os.PathLike[str], problems: Iterable[Problem] | None = None) -> Path:
        """Write an artefact: kernels and launches of chosen problems, which run without planning, compiling or the DSL.

        `cutegemm.load(path)` loads it. Extents, types, strides and address alignment are fixed by the problems.
        Addresses, alpha, beta and other numbers are given per call.

        Args:
            path: of the file; the usual suffix is ".cutegemm".
            problems: None is the representative problem.

        Returns:
            The path.

        Raises:
            InputError: `problems` is empty or not an iterable of problems.
            PlanError: the spec does not support a problem.
            CompileError: a kernel does not compile.
        """
        wanted = [self._representative] if problems is None else listed("problems", problems)
        target = checked_path(path)
        if not wanted:
            raise field_error(InputError, "problems", [], "must hold at least one problem")
        write(target, saved(self.spec, [self._choice(x).plan for x in wanted]))
        return target

    def tune(self, problems: Iterable[Problem] | None = None, **options: Any) -> Report:
        """Run `cutegemm.tune` for this spec; later runs use what it found.

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
    ) -> list[loader.RecordedLaunch]:
        """Record every launch of a run with its parameters, by the real host code with CUDA replaced; needs no GPU.

        Args:
            of: the problem.
            addresses: of a, b, the epilogue's tensors, its outputs and its device scalars, by name. Addresses that are
                not given are invented, 1 MiB apart.
            workspace: address of the workspace. The plan's counters, if any, follow at the next multiple of 256 bytes.
            numbers: alpha, beta, or the numbers that the epilogue takes; the default is 1.

        Raises:
            InputError: an argument has another type, or names something that the launch does not take.
            PlanError, CompileError: see `kernel`.
        """
        return recorded_launches.recorded(self._choice(of).plan, addresses, workspace, numbers)

    def explain(self, of: Problem | None = None, *, why: bool = False) -> str:
        """Explain as text what runs for a problem (default: the representative one), and why.

        It shows launches, tile, epilogue with the bytes of its inputs and outputs, registers, stages, shared memory and
        how the kernel was chosen.

        Args:
            of: the problem.
            why: also list every candidate with its predicted time and why it lost (`KernelPlan.why`).
        """
        checks.truth(InputError, "why", why)
        choice = self._chosen if of is None else self._choice(of)
        return explained(choice.plan, choice.entry, why)

    def __str__(self) -> str:
        return f"{self.spec}\n{self.explain()}"

    def __repr__(self) -> str:
        rest = "" if self._representative == representative(self.spec) else f", {self._representative!r}"
        return f"build({self.spec!r}{rest})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and unpickled objects are planned again; their kernels come from the cache on the first run."""
        return type(self), (self.spec, self._representative)


__all__ = ["Kernels"]
