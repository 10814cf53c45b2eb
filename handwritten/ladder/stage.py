# SPDX-License-Identifier: Apache-2.0
"""A stage: a `.cu` file with its idea, limits and properties.

The constants of a stage (tile, threads, shared memory) are only in its `.cu` file and are read from there. Other
modules compute the properties.
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
        dtypes: names of the supported operand types.
        limits: requirements on a problem.
        instruction: a regular expression of SASS opcodes that show the idea.
        planner: makes the launches of a problem.
        variant: distinguishes stages of one file.
        macros: the `-D` definitions of a variant.
        reuse: (rows, columns) that share a loaded element; default: the CTA's tile.
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
        """The number of the stage, from 1."""
        return int(self.file[:2])

    @property
    def key(self) -> str:
        """The unique name, such as "03_smem_tile"."""
        return Path(self.file).stem + (f"_{self.variant}" if self.variant else "")

    @property
    def name(self) -> str:
        """The key without its number, such as "smem_tile"."""
        return self.key[3:]

    def called(self, label: str | int) -> bool:
        """Tell whether a label is the stage's key, name or number."""
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
        """FLOP per byte of A and B that the CTA loads: 2*BM*BN / ((BM+BN) * bytes per element)."""
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
        """Static count of each SASS opcode in the main kernel."""
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
        """Tell whether the stage supports packed matrices of these extents."""
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
