# SPDX-License-Identifier: Apache-2.0
"""What a stage is: a `.cu` file, its idea and limits, and what can be asked of it.

A stage's numbers (tile, threads, shared memory) live in its `.cu` file alone and are read from there, so that
nothing can disagree with them. Each question is answered in a module of its own; a stage only asks it.
"""

from __future__ import annotations

import collections
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cutegemm.arch.records import H200
from cutegemm.errors import GemmError
from handwritten.ladder import compiling, plans, resources, source
from handwritten.ladder.problem import ELEMENT_BYTES, Limits, Problem, contiguous

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the ladder.

    Attributes:
        file: name of the `.cu` file.
        idea: what it adds to the stage before it, in one line.
        dtypes: names of the operand types it takes.
        limits: what it asks of a problem.
        instruction: a regular expression over SASS opcodes that the idea must show up as.
        planner: problem to launches.
        variant: tells stages of one file apart.
        macros: the `-D` definitions of a variant.
        reuse: the (rows, columns) a fetched element serves, which is the CTA's tile unless given.
    """

    file: str
    idea: str
    dtypes: tuple[str, ...]
    limits: Limits
    instruction: str
    planner: plans.PlanFunction = plans.plan_pointers
    variant: str = ""
    macros: dict[str, int] = field(default_factory=dict, hash=False)
    reuse: tuple[int, int] | None = None

    @property
    def number(self) -> int:
        """The place on the ladder, from 1."""
        return int(self.file[:2])

    @property
    def key(self) -> str:
        """The name to ask for, such as "03_smem_tile"."""
        return Path(self.file).stem + (f"_{self.variant}" if self.variant else "")

    @property
    def name(self) -> str:
        """The key without its number, such as "smem_tile"."""
        return self.key[3:]

    def called(self, label: str | int) -> bool:
        """Tell whether a label means this stage: its key, its name or its number."""
        return label in (self.key, self.name, self.number, str(self.number), f"{self.number:02}")

    @property
    def path(self) -> Path:
        """The `.cu` file."""
        return source.FOLDER / self.file

    @functools.cached_property
    def source(self) -> str:
        """The text of the `.cu` file."""
        return self.path.read_text("utf-8")

    @functools.cached_property
    def constants(self) -> dict[str, int]:
        """The tile constants of the source: BM, BN, BK, THREADS, SMEM (dynamic bytes), and so on."""
        return source.read_constants(self.source, self.macros)

    def intensity(self, dtype: str) -> float:
        """FLOP per byte that the CTA fetches of A and B: 2*BM*BN / ((BM+BN) * bytes per element)."""
        rows, cols = self.reuse or (self.constants["BM"], self.constants["BN"])
        return 2 * rows * cols / ((rows + cols) * ELEMENT_BYTES[dtype])

    def compiled(self, dtype: str | None = None, majors: str = "rr") -> compiling.Compiled:
        """Return CUBIN and PTX for a dtype and the majors of A and B ("r" row, "c" column).

        Raises:
            GemmError: the stage does not have that dtype or those majors.
            CompileError: NVRTC is missing or fails.
        """
        return compiling.compile_stage(self, dtype or self.dtypes[0], majors)

    @property
    def ptx(self) -> str:
        """The PTX of the first dtype, row-major operands."""
        return self.compiled().ptx

    @property
    def sass(self) -> str:
        """The SASS of the first dtype, row-major operands."""
        return resources.disassemble(self.compiled().cubin)

    @property
    def instructions(self) -> collections.Counter[str]:
        """Static count of each SASS opcode of the main kernel."""
        return resources.instruction_mix(self.sass, "gemm")

    def resources(self, dtype: str | None = None, majors: str = "rr") -> resources.Resources:
        """Return registers, shared memory, spills and occupancy; needs no GPU."""
        constants = self.constants
        cubin = self.compiled(dtype, majors).cubin
        return resources.read_resources(cubin, "gemm", constants["THREADS"], constants.get("SMEM", 0))

    def plan(self, problem: Problem, sms: int = H200.sms) -> plans.Plan:
        """Return the launches for a problem on a GPU of `sms` multiprocessors; needs no GPU.

        Raises:
            GemmError: the problem is outside the stage's limits.
        """
        return plans.plan(self, problem, sms)

    def takes(self, dtype: str, m: int, n: int, k: int, majors: str = "rr") -> bool:
        """Tell whether packed matrices of these extents are within the limits."""
        try:
            self.plan(contiguous(dtype, m, n, k, majors=majors))
        except GemmError:
            return False
        return True

    def run(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None = None,
        alpha: float = 1.0,
        beta: float | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return alpha * a @ b + beta * c, computed by this stage on torch's current stream.

        a is (M, K), b is (K, N), c and out are (M, N) and row-major; all CUDA tensors of one dtype.
        beta defaults to 1 with c and to 0 without; beta = 0 never reads c. out may be c.

        Raises:
            InputError: shapes, dtypes or devices do not agree.
            GemmError: the problem is outside the stage's limits.
            HardwareError: the tensors are not on a Hopper GPU.
        """
        from handwritten.ladder.launch import run  # imports torch, which listing and compiling do not need

        return run(self, a, b, c, alpha=alpha, beta=beta, out=out)
