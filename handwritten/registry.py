# SPDX-License-Identifier: Apache-2.0
"""The ladder's stages in order: what each is called, what it adds, what it can take, how to run it.

A stage's numbers (tile, threads, shared memory) live in its `.cu` file alone; the registry reads them
from there, so the two cannot disagree.
"""

from __future__ import annotations

import collections
import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cutegemm.errors import GemmError, check
from cutegemm.hardware import H200
from handwritten import compile as compiler
from handwritten import resources
from handwritten.plans import (
    Plan,
    PlanFunction,
    plan_persistent,
    plan_pointers,
    plan_split_k_atomic,
    plan_split_k_workspace,
    plan_tma,
)
from handwritten.problem import ELEMENT_BYTES, Limits, Problem, contiguous

if TYPE_CHECKING:
    import torch

FP32 = ("fp32",)
HALVES = ("bf16", "fp16")
# A tile constant of a .cu file, or the default of one that a -D may override.
_CONSTANT = re.compile(r"^(?:constexpr int (\w+) = ([^;]+);|#define ([A-Z]\w*) (\d+)$)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One rung of the ladder: a `.cu` file, its limits, and what can be asked of it.

    instruction is a regular expression over SASS opcodes that the idea must show up as; reuse is the
    (rows, columns) a fetched element serves, which is the CTA's tile unless given.
    """

    file: str
    idea: str
    dtypes: tuple[str, ...]
    limits: Limits
    instruction: str
    planner: PlanFunction = plan_pointers
    variant: str = ""
    macros: dict[str, int] = field(default_factory=dict, hash=False)
    reuse: tuple[int, int] | None = None

    @property
    def number(self) -> int:
        """The rung, from 1."""
        return int(self.file[:2])

    @property
    def key(self) -> str:
        """The name to ask for, such as "03_smem_tile"."""
        return Path(self.file).stem + (f"_{self.variant}" if self.variant else "")

    @property
    def path(self) -> Path:
        """The `.cu` file."""
        return compiler.FOLDER / self.file

    @functools.cached_property
    def source(self) -> str:
        """The text of the `.cu` file."""
        return self.path.read_text()

    @functools.cached_property
    def constants(self) -> dict[str, int]:
        """The tile constants of the source: BM, BN, BK, THREADS, SMEM (dynamic bytes), and so on."""
        return read_constants(self.source, self.macros)

    def intensity(self, dtype: str) -> float:
        """FLOP per byte that the CTA fetches of A and B: 2*BM*BN / ((BM+BN) * bytes per element)."""
        rows, cols = self.reuse or (self.constants["BM"], self.constants["BN"])
        return 2 * rows * cols / ((rows + cols) * ELEMENT_BYTES[dtype])

    def compiled(self, dtype: str | None = None, majors: str = "rr") -> compiler.Compiled:
        """Return CUBIN and PTX for a dtype and the majors of A and B ("r" row, "c" column).

        Raises:
            GemmError: the stage does not have that dtype or those majors.
            CompileError: NVRTC fails.
        """
        dtype = dtype or self.dtypes[0]
        check(
            dtype in self.dtypes,
            GemmError,
            f"dtype={dtype!r}: stage {self.key} takes {', '.join(self.dtypes)}",
        )
        legal = ("rr", "rc", "cr", "cc") if self.limits.col_major else ("rr",)
        check(majors in legal, GemmError, f"majors={majors!r}: stage {self.key} takes {', '.join(legal)}")
        macros = {
            "HALF": int(dtype == "fp16"),
            "A_COL": int(majors[0] == "c"),
            "B_COL": int(majors[1] == "c"),
        }
        return compiler.compile_source(self.path, macros | self.macros)

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

    def plan(self, problem: Problem, sms: int = H200.sms) -> Plan:
        """Return the launches for a problem on a GPU of `sms` multiprocessors; needs no GPU.

        Raises:
            GemmError: the problem is outside the stage's limits.
        """
        check(
            problem.dtype in self.dtypes,
            GemmError,
            f"dtype={problem.dtype!r}: stage {self.key} takes {self.dtypes}",
        )
        self.limits.verify(self.key, problem)
        return self.planner(self, problem, sms)

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
        from handwritten.launch import run  # imports torch, which listing and compiling do not need

        return run(self, a, b, c, alpha=alpha, beta=beta, out=out)


def read_constants(source: str, given: dict[str, int]) -> dict[str, int]:
    """Evaluate a source's `constexpr int` lines and macro defaults; `given` overrides the latter."""
    found = dict(given)
    for name, expression, macro, default in _CONSTANT.findall(source):
        if macro:
            found.setdefault(macro, int(default))
        else:
            # Integer arithmetic over earlier names only: C's / on positive ints is Python's //.
            found[name] = int(eval(expression.replace("/", "//"), {"__builtins__": {}}, found))
    return found


ANY = Limits()
VECTORS = Limits(n=4, k=4, align=16, col_major=False)
ALIGNED = Limits(align=16)

_STAGES = (
    Stage(
        file="01_naive.cu",
        idea="one thread per element, a warp walks down a column",
        dtypes=FP32,
        limits=ANY,
        instruction="FFMA",
        reuse=(1, 1),
    ),
    Stage(
        file="02_coalesced.cu",
        idea="a warp walks along a row: its loads fall into one line",
        dtypes=FP32,
        limits=ANY,
        instruction="FFMA",
        reuse=(1, 1),
    ),
    Stage(
        file="03_smem_tile.cu",
        idea="a CTA stages tiles of A and B in shared memory",
        dtypes=FP32,
        limits=ANY,
        instruction=r"LDS",
    ),
    Stage(
        file="04_register_tile_1d.cu",
        idea="a thread owns TM rows of a column (thread coarsening)",
        dtypes=FP32,
        limits=ANY,
        instruction=r"LDS",
    ),
    Stage(
        file="05_register_tile_2d.cu",
        idea="a thread owns TM x TN elements, an outer product per k",
        dtypes=FP32,
        limits=ANY,
        instruction=r"LDS",
    ),
    Stage(
        file="06_vectorised.cu",
        idea="128-bit loads everywhere, A transposed into padded shared memory",
        dtypes=FP32,
        limits=VECTORS,
        instruction=r"LDG\.E\.128",
    ),
    Stage(
        file="07_warp_tile.cu",
        idea="warps own 64 x 64 of the tile, threads 16 x 8 in pieces of four",
        dtypes=FP32,
        limits=VECTORS,
        instruction=r"LDS\.128",
    ),
    Stage(
        file="08_pipelined.cu",
        idea="TMA fills one buffer while threads only multiply from the other",
        dtypes=FP32,
        limits=VECTORS,
        instruction=r"UTMALDG",
        planner=plan_tma,
    ),
    Stage(
        file="09_wmma_global.cu",
        idea="a warp owns 16 x 16: tensor cores fed from global memory",
        dtypes=HALVES,
        limits=Limits(m=16, n=16, k=16, align=32),
        instruction=r"HMMA",
        reuse=(16, 16),
    ),
    Stage(
        file="10_wmma_smem.cu",
        idea="four warps share a 64 x 64 tile in shared memory",
        dtypes=HALVES,
        limits=Limits(m=64, n=64, k=16, align=16),
        instruction=r"LDSM",
    ),
    Stage(
        file="11_wmma_double_buffer.cu",
        idea="cp.async brings the next tile meanwhile; the result leaves in rows",
        dtypes=HALVES,
        limits=Limits(m=64, n=64, k=16, align=16),
        instruction=r"LDGSTS\.E.*\.128",
    ),
    Stage(
        file="12_wmma_swizzled.cu",
        idea="CTAs in panels for L2, padded rows for the banks, BK 32",
        dtypes=HALVES,
        limits=Limits(m=64, n=64, k=32, align=16),
        instruction=r"LDGSTS\.E.*\.128",
    ),
    Stage(
        file="13_wmma_any_shape.cu",
        idea="zero-filled edges, guarded stores: any M, N, K and pitch",
        dtypes=HALVES,
        limits=ANY,
        instruction=r"LDGSTS\.E.*\.128",
    ),
    Stage(
        file="14_mma_sync.cu",
        idea="ldmatrix and mma.sync from an XOR-swizzled ring of cp.async tiles",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"LDSM\.16\.M",
    ),
    Stage(
        file="15_mma_tma.cu",
        idea="TMA and a producer feed mma.sync; barriers per slot, none per CTA",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"UTMALDG",
        planner=plan_tma,
    ),
    Stage(
        file="16_wgmma_serial.cu",
        idea="TMA fills swizzled shared memory, wgmma multiplies from it, in turn",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"HGMMA\.64x64x16",
        planner=plan_tma,
    ),
    *(
        Stage(
            file="17_wgmma_shapes.cu",
            variant=f"n{n}",
            macros={"WGMMA_N": n},
            idea=f"128 rows in two m-steps, instruction m64n{n}k16",
            dtypes=HALVES,
            limits=ALIGNED,
            instruction=rf"HGMMA\.64x{n}x16",
            planner=plan_tma,
        )
        for n in (32, 64, 128, 256)
    ),
    Stage(
        file="18_producer_consumer.cu",
        idea="one warpgroup loads ahead into a ring, two multiply",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"USETMAXREG",
        planner=plan_tma,
    ),
    Stage(
        file="19_staged_epilogue.cu",
        idea="accumulators cross shared memory so that C and D move in rows",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"STG\.E\.128",
        planner=plan_tma,
    ),
    Stage(
        file="20_persistent_cluster.cu",
        idea="resident CTAs in pairs multicast B; C and D by TMA under the next tile",
        dtypes=HALVES,
        limits=Limits(align=16, n=8),  # a TMA store writes whole 16-byte chunks of D's rows
        instruction=r"UTMALDG\.2D\.MULTICAST",
        planner=plan_persistent,
    ),
    Stage(
        file="21_split_k_atomic.cu",
        idea="CTAs share a tile, each a part of K, and add into one workspace tile",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"REDG\.E\.ADD\.F32x4",
        planner=plan_split_k_atomic,
    ),
    Stage(
        file="22_split_k_workspace.cu",
        idea="every part of K keeps its sums, a second kernel adds them in order",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"STG\.E\.128",
        planner=plan_split_k_workspace,
    ),
)


def stages() -> tuple[Stage, ...]:
    """Return every stage, in the order of the ladder."""
    return _STAGES


def stage(key: str | int) -> Stage:
    """Return one stage by its key ("03_smem_tile"), its name without the number, or its number.

    Raises:
        GemmError: no stage is called so.
    """
    for candidate in _STAGES:
        if key in (candidate.key, candidate.key[3:], candidate.number, str(candidate.number)):
            return candidate
    names = ", ".join(candidate.key for candidate in _STAGES)
    raise GemmError(f"stage={key!r}: must be one of {names}")
