# SPDX-License-Identifier: Apache-2.0
"""Whole kernels on small problems, which run on a GPU and on the emulator: handwritten stages and planned kernels.

Operands come from a seed, so both machines have the same; alpha is 1.5 and beta 0.5. The launches of a case (PTX,
geometry, parameters) can be stored as text, so the emulator later runs exactly what the GPU ran.
"""

from __future__ import annotations

import ctypes
import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import cutegemm
import handwritten
from benchmarks.emulator_probes import Draws
from cutegemm import GemmSpec, Tile
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Buffer, Launch, Module, Options, Report, launch, tensor_buffer
from cutegemm.emulator.state.tensors import TensorMap, encode
from cutegemm.planning.planner import plan
from cutegemm.problems import problem
from handwritten.ladder import plans
from handwritten.ladder.problem import Matrix, Problem

ALPHA, BETA = 1.5, 0.5
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_MAP_KIND = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
STANDS_FOR = {
    name: 0x5EED00 + i << 32 for i, name in enumerate("abcdw")
}  # placeholder addresses in stored parameters


@dataclass(frozen=True)
class Step:
    """One stored launch; parameters are hexadecimal, with `STANDS_FOR` instead of addresses."""

    ptx: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    params: list[str]
    workspace: int  # bytes, zeroed


@dataclass(frozen=True)
class Case:
    """One kernel on one problem: `what` is a handwritten stage's key or a spec."""

    what: str | GemmSpec
    dtype: str
    shape: tuple[int, int, int]

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A (M, K), B (K, N) and C (M, N) on the CPU, the same on every machine."""
        m, n, k = self.shape
        rng = Draws(m, n, k)
        values = (rng.integers(-(2**15), 2**15, s) / 2.0**13 for s in ((m, k), (k, n), (m, n)))
        a, b, c = (torch.from_numpy(x).to(TORCH[self.dtype]) for x in values)
        return a, b, c

    def prepared(self) -> Callable[[], torch.Tensor]:
        """A function that computes D on the GPU; operands are copied there before."""
        a, b, c = (x.cuda() for x in self.operands())
        if isinstance(self.what, GemmSpec):
            gemm = cutegemm.build(self.what)
            return lambda: gemm.run(a, b, c, alpha=ALPHA, beta=BETA, backend="gpu")
        stage = _stage(self.what)
        return lambda: stage.run(a, b, c, ALPHA, BETA)

    def steps(self) -> list[Step]:
        """The launches of the case, as compiled here."""
        if isinstance(self.what, GemmSpec):
            return _spec_steps(self, self.what)
        return _stage_steps(self, _stage(self.what))

    def emulate(
        self, steps: list[Step] | None = None, options: Options | None = None
    ) -> tuple[torch.Tensor, list[Report]]:
        """D and the report of each launch, from the emulator."""
        steps = self.steps() if steps is None else steps
        a, b, c = self.operands()
        workspace = torch.zeros(max(step.workspace for step in steps) + 16, dtype=torch.uint8)
        named = dict(zip(STANDS_FOR, (a, b, c, torch.empty_like(c), workspace), strict=True))
        buffers = [tensor_buffer(x, name.upper()) for name, x in named.items()]
        reports = []
        for step in steps:
            params = [_relocated(bytes.fromhex(x), buffers) for x in step.params]
            what = Launch(
                grid=_three(step.grid),
                block=_three(step.block),
                cluster=_three(step.cluster),
                smem_bytes=step.smem,
                params=params,
                buffers=buffers,
            )
            reports.append(launch(Module.parse(step.ptx).kernel(step.kernel), what, options))
        return named["d"], reports


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    """Extents as a tuple; stored ones are lists."""
    x, y, z = extents
    return x, y, z


def _relocated(parameter: bytes, buffers: list[Buffer]) -> bytes:
    for address, buffer in zip(STANDS_FOR.values(), buffers, strict=True):
        parameter = parameter.replace(address.to_bytes(8, "little"), buffer.address.to_bytes(8, "little"))
    return parameter


def _stage(key: str) -> handwritten.Stage:
    return next(s for s in handwritten.stages() if s.key == key)


def _spec_steps(case: Case, spec: GemmSpec) -> list[Step]:
    of = problem(*case.shape, dtype=case.dtype, c_dtype=case.dtype)
    gemm = cutegemm.build(spec)
    addresses = {name: STANDS_FOR[name] for name in "abcd"}
    launches = gemm.launches(of, addresses, STANDS_FOR["w"], alpha=ALPHA, beta=BETA)
    ptx = [kernel_cache.artifact(step.config).ptx for step in plan(spec, of).steps]
    return [
        Step(
            text,
            Module.parse(text).kernel().name,
            x.grid,
            x.block,
            x.cluster,
            x.smem,
            [p.hex() for p in x.params],
            gemm.workspace_bytes(of),
        )
        for text, x in zip(ptx, launches, strict=True)
    ]


def _stage_steps(case: Case, stage: handwritten.Stage) -> list[Step]:
    m, n, k = case.shape
    sides = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}
    matrix = {x: Matrix(STANDS_FOR[x], *sides[x], sides[x][1]) for x in sides}
    planned = stage.plan(Problem(case.dtype, matrix["a"], matrix["b"], matrix["d"], matrix["c"], ALPHA, BETA))
    ptx = stage.compiled(case.dtype).ptx
    return [
        Step(
            ptx,
            x.kernel,
            x.grid,
            (x.threads, 1, 1),
            (1, 1, 1),
            x.smem,
            [_parameter(p).hex() for p in x.arguments],
            planned.workspace_bytes,
        )
        for x in planned.launches
    ]


def _parameter(argument: Any) -> bytes:
    """The bytes of one kernel argument of a handwritten stage."""
    if isinstance(argument, plans.TensorMap):
        kind = _MAP_KIND[argument.dtype]
        pitch, extents, box = (argument.pitch_bytes,), tuple(argument.extents), tuple(argument.box)
        return encode(TensorMap(argument.pointer, kind, extents, pitch, box, 3))
    if isinstance(argument, plans.Workspace):
        return (STANDS_FOR["w"] + argument.offset).to_bytes(8, "little")
    if isinstance(argument, ctypes.c_void_p):
        return int(argument.value or 0).to_bytes(8, "little")
    return bytes(argument)


def keep(path: Path) -> None:
    """Write the launches of every case, as compiled on this machine."""
    kept = {name: [asdict(step) for step in case.steps()] for name, case in CASES.items()}
    path.write_bytes(lzma.compress(json.dumps(kept).encode(), preset=9))


def kept(path: Path) -> dict[str, list[Step]]:
    """The launches that `keep` wrote."""
    cases = json.loads(lzma.decompress(path.read_bytes()))
    return {name: [Step(**step) for step in steps] for name, steps in cases.items()}


CASES = {
    "01_naive": Case("01_naive", "fp32", (40, 72, 33)),
    "02_coalesced": Case("02_coalesced", "fp32", (40, 72, 33)),
    "03_smem_tile": Case("03_smem_tile", "fp32", (72, 70, 45)),
    "05_register_tile_2d": Case("05_register_tile_2d", "fp32", (70, 130, 40)),
    "07_warp_tile": Case("07_warp_tile", "fp32", (68, 132, 40)),
    "09_wmma_global": Case("09_wmma_global", "fp16", (48, 32, 48)),
    "10_wmma_smem": Case("10_wmma_smem", "fp16", (64, 128, 64)),
    "13_wmma_any_shape": Case("13_wmma_any_shape", "bf16", (70, 69, 41)),
    "14_mma_sync": Case("14_mma_sync", "bf16", (136, 136, 72)),
    "17_wgmma_shapes_n128": Case("17_wgmma_shapes_n128", "bf16", (136, 136, 136)),
    "18_producer_consumer": Case("18_producer_consumer", "bf16", (136, 136, 136)),
    "20_persistent_cluster": Case("20_persistent_cluster", "bf16", (264, 136, 136)),
    "simt_fp32": Case(GemmSpec(), "fp32", (70, 66, 40)),
    "warp_specialized": Case(GemmSpec(tile=Tile(128, 128, 64)), "bf16", (136, 136, 200)),
    "warp_specialized_cluster": Case(
        GemmSpec(tile=Tile(128, 128, 64), cluster=(2, 1), stages=3), "fp16", (264, 136, 136)
    ),
    "multistage": Case(
        GemmSpec(schedule="multistage", tile=Tile(64, 64, 64), stages=2), "bf16", (72, 136, 136)
    ),
}
