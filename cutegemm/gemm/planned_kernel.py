# SPDX-License-Identifier: Apache-2.0
"""One problem's kernel, its listings, and its explanation."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.compiling import kernel_cache, resources
from cutegemm.compiling.compiler import Artifact
from cutegemm.database import Entry
from cutegemm.plans.kernel_plan import KernelPlan


@dataclass(frozen=True)
class Kernel:
    """One problem's kernel: its plan and the GEMM launch's compiled artifact (None when D is empty)."""

    plan: KernelPlan
    artifact: Artifact | None

    @staticmethod
    def of(plan: KernelPlan) -> Kernel:
        """The kernel of a plan, compiled or from the cache.

        Raises:
            CompileError: it does not compile.
        """
        return Kernel(plan, None if plan.config is None else kernel_cache.artifact(plan.config))

    @property
    def ptx(self) -> str:
        """The GEMM kernel's PTX."""
        return self.artifact.ptx if self.artifact else ""

    @property
    def sass(self) -> str:
        """The GEMM kernel's machine code as text; needs nvdisasm."""
        return resources.sass(self.artifact.cubin) if self.artifact else ""

    @property
    def resources(self) -> resources.Resources | None:
        """Registers, spills, shared memory, code size, instructions."""
        return self.artifact.resources if self.artifact else None


def explained(plan: KernelPlan, entry: Entry | None, why: bool) -> str:
    """The text of `Gemm.explain`: the plan, the compiled kernel, and how it was chosen.

    Args:
        plan: of the problem.
        entry: the database entry that chose the plan, if any.
        why: whether to list every candidate.
    """
    kernel, config = Kernel.of(plan), plan.config
    lines = [str(plan)]
    if config is not None:
        if entry is not None and entry.expired(config, kernel.ptx):
            lines.append("expired    the entry was measured on a different kernel: tune again")
        lines.append(f"compiled   {kernel.resources}")
    if why:
        lines.append(str(plan.why))
    return "\n".join(lines)


__all__ = ["Kernel", "explained"]
