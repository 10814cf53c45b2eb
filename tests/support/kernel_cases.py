# SPDX-License-Identifier: Apache-2.0
"""Specs with a memory layout per operand: one case for each path through the kernels.

Shapes, scalars and data vary within a case, so the kernels of all cases are few and compile together.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from cutegemm import GemmSpec, Tile
from cutegemm.compiling import kernel_cache
from cutegemm.epilogue.graph import linear_combination
from cutegemm.gemm import Gemm, representative
from cutegemm.planning.planner import plan
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.check import aligned
from cutegemm.running.arguments.describe import describe
from tests.support.memory import Layout

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ROW, COL = Layout(), Layout(row_major=False)
ODD_ROW, ODD_COL = Layout(aligned=False), Layout(row_major=False, aligned=False)
OFF_GRID = Layout(offset=1)  # an aligned leading dimension, but a base address that TMA cannot take
STRIDED = Layout(unit=2, aligned=False)
# extents that are multiples of 8 make leading dimensions of 8 bytes and no more
EIGHT_BYTES = Layout(pad=4, aligned=False)
T128 = Tile(128, 128, 64)
SMALL = {"tile": Tile(128, 64, 64)}
COPIED = {"a_load": "relayout", "b_load": "relayout"}


@dataclass(frozen=True)
class Case:
    """What decides which kernels run: the spec, the types, the layouts, and whether C is read."""

    spec: GemmSpec
    a: Layout = ROW
    b: Layout = ROW
    d: Layout = ROW
    c: Layout | None = ROW
    dtype: torch.dtype = BF16
    d_dtype: torch.dtype = BF16
    c_dtype: torch.dtype = BF16
    # extents are rounded up to it, where their divisibility decides which kernel runs
    step: int = 1
    # the least K: each of the parts that K is cut into needs a k tile
    least_k: int = 1

    def tensors(self, shape, device, batch=None, broadcast=""):
        """(a, b, c, guarded out) of (m, n, k); operands named in `broadcast` are 2-D."""
        m, n, k = (-(-x // self.step) * self.step for x in shape)
        k = max(k, self.least_k)
        if self.spec.store == "auto" and self.d in (ROW, COL) and self.spec.schedule != "simt":
            chunk = 16 // self.d_dtype.itemsize  # TMA stores whole 16-byte chunks; other extents are staged
            m, n = (m, -(-n // chunk) * chunk) if self.d.row_major else (-(-m // chunk) * chunk, n)
        generator = torch.Generator(device).manual_seed(m * 7 + n * 3 + k)
        lead = {x: () if batch is None or x in broadcast else (batch,) for x in "abc"}
        a = self.a.random((*lead["a"], m, k), self.dtype, generator)
        b = self.b.random((*lead["b"], k, n), self.dtype, generator)
        c = None if self.c is None else self.c.random((*lead["c"], m, n), self.c_dtype, generator)
        d = self.d.make((m, n) if batch is None else (batch, m, n), self.d_dtype, device)
        return a, b, c, d

    def problems(self):
        """Problems that need this case's kernels: with C read, and not."""
        a, b, c, d = self.tensors((70, 90, 50), "cpu")
        return [described(a, b, x, d.view) for x in dict.fromkeys((c, None), None)]


def described(a, b, c, d):
    """The problem of alpha a @ b + beta c into d."""
    graph = linear_combination(c is not None)
    request = Request(a, b, {} if c is None else {"c": c}, {"d": d})
    return aligned(describe(graph, request), request).problem


def spec(**fields) -> GemmSpec:
    """A spec with a small tile unless another is given."""
    if fields.get("schedule") == "simt":
        return GemmSpec(**fields)
    return GemmSpec(**(SMALL | fields))


CASES = {
    # majors of A and B
    "row, row": Case(spec()),
    "row, col": Case(spec(), b=COL),
    "col, row": Case(spec(), a=COL),
    "col, col": Case(spec(), a=COL, b=COL),
    # store paths by major of D and type
    "store tma, D col": Case(spec(), d=COL, c=COL),
    "store staged, D of odd extents": Case(spec(store="staged"), d=ROW, c=COL),
    "store staged": Case(spec(store="staged")),
    "store staged, D odd": Case(spec(store="staged"), d=ODD_ROW, c=ODD_ROW),
    "store staged, D odd col": Case(spec(store="staged"), d=ODD_COL, c=ODD_ROW),
    "store staged, D strided": Case(spec(), d=STRIDED, c=STRIDED),
    "store direct": Case(spec(store="direct")),
    "store direct, D odd col": Case(spec(store="direct"), d=ODD_COL, c=ODD_COL),
    "store direct, D strided": Case(spec(store="direct"), d=STRIDED, c=None),
    "store tma, fp32": Case(spec(), d_dtype=FP32, c_dtype=FP32),
    "store tma, fp32 col": Case(spec(), d=COL, d_dtype=FP32, c_dtype=FP32),
    "store staged, fp32 odd": Case(spec(), d=ODD_ROW, d_dtype=FP32, c_dtype=BF16),
    "store direct, fp32": Case(spec(store="direct"), d_dtype=FP32),
    "D off the grid": Case(spec(), d=OFF_GRID),
    # types
    "fp16": Case(spec(), dtype=FP16, d_dtype=FP16, c_dtype=FP16),
    "fp16 to bf16": Case(spec(), dtype=FP16, d_dtype=BF16, c_dtype=FP32),
    "fp16 to fp32, col": Case(spec(), a=COL, b=COL, dtype=FP16, d_dtype=FP32, c_dtype=FP16),
    "bf16 to fp16": Case(spec(), d_dtype=FP16, c_dtype=FP16),
    # load paths
    "relayout a": Case(spec(a_load="relayout"), a=ODD_ROW),
    "relayout b": Case(spec(b_load="relayout"), b=ODD_ROW),
    "relayout both, col": Case(spec(**COPIED), a=ODD_COL, b=ODD_COL),
    "relayout both, odd D": Case(spec(**COPIED), a=ODD_ROW, b=ODD_ROW, d=ODD_ROW, c=ODD_ROW),
    "relayout strided": Case(spec(**COPIED), a=STRIDED, b=STRIDED),
    "relayout off the grid": Case(spec(**COPIED), a=OFF_GRID, b=OFF_GRID),
    "gather a": Case(spec(a_load="gather"), a=ODD_ROW),
    "gather b": Case(spec(b_load="gather"), b=ODD_ROW),
    "gather both": Case(spec(a_load="gather", b_load="gather"), a=ODD_COL, b=ODD_COL),
    "gather strided": Case(spec(a_load="gather", b_load="gather"), a=STRIDED, b=STRIDED),
    "gather a, relayout b": Case(spec(a_load="gather", b_load="relayout"), a=ODD_ROW, b=ODD_COL),
    "shift both, odd D": Case(
        spec(a_load="shift", b_load="shift"), a=ODD_ROW, b=ODD_COL, d=ODD_ROW, c=ODD_ROW
    ),
    "shift both, col": Case(spec(a_load="shift", b_load="shift"), a=ODD_COL, b=ODD_ROW),
    "shift off the grid": Case(spec(a_load="shift", b_load="shift"), a=OFF_GRID, b=OFF_GRID),
    "shift b, swapped": Case(
        GemmSpec(tile=Tile(16, 64, 128), swap=True, b_load="shift"), b=Layout(row_major=False, aligned=False)
    ),
    "cp_async both": Case(spec(a_load="cp_async", b_load="cp_async"), a=EIGHT_BYTES, b=EIGHT_BYTES, step=8),
    # clusters
    "cluster 2x1": Case(spec(cluster=(2, 1), tile=T128)),
    "cluster 1x2, col": Case(spec(cluster=(1, 2), tile=T128), a=COL, b=COL),
    "cluster 2x2": Case(spec(cluster=(2, 2), tile=T128)),
    "cluster 4x2, per tile": Case(spec(cluster=(4, 2), tile=T128, scheduler="per_tile")),
    # tiles, swizzles, stages, roles
    "tile 64x16": Case(spec(tile=Tile(64, 16, 64))),
    "tile 128x256": Case(spec(tile=Tile(128, 256, 64), cluster=(2, 1))),
    "tile 256x128": Case(spec(tile=Tile(256, 128, 64))),
    "tile 256x192": Case(spec(tile=Tile(256, 192, 64), cluster=(2, 1))),
    "tile 192x256, three consumers": Case(spec(tile=Tile(192, 256, 64), consumers=3), c=COL),
    "tile 192x144, three consumers": Case(spec(tile=Tile(192, 144, 64), consumers=3)),
    "tile 128x208": Case(spec(tile=Tile(128, 208, 64))),
    "tile 64x256, one consumer": Case(spec(tile=Tile(64, 256, 64), consumers=1)),
    "k 128": Case(spec(tile=Tile(128, 64, 128))),
    "k 16, no swizzle": Case(spec(tile=Tile(64, 32, 16), swizzle="none")),
    "swizzle 64B": Case(spec(swizzle="64B"), a=COL),
    "swizzle 32B": Case(spec(swizzle="32B"), b=COL),
    "swizzle none": Case(spec(swizzle="none"), a=COL, b=COL),
    "one stage": Case(spec(stages=1)),
    "two stages, per tile": Case(spec(stages=2, scheduler="per_tile")),
    "epilogue stages 3": Case(spec(tile=Tile(128, 192, 64), epilogue_stages=3)),
    "raster n, 5 SMs": Case(spec(raster=("n", 3), sms=5)),
    # warpgroups in turn
    "pingpong": Case(spec(schedule="pingpong")),
    "pingpong 128x192, 2x1, fp32": Case(
        spec(schedule="pingpong", tile=Tile(128, 192, 64), cluster=(2, 1)), d_dtype=FP32, c_dtype=FP32
    ),
    # 208 accumulators a thread
    "pingpong 128x208, 2x1, C col": Case(
        spec(schedule="pingpong", tile=Tile(128, 208, 64), cluster=(2, 1)), c=COL, c_dtype=FP32
    ),
    "tile 256x208, 1x2": Case(spec(tile=Tile(256, 208, 64), cluster=(1, 2)), b=COL),
    "pingpong 208x128, swapped": Case(
        spec(schedule="pingpong", tile=Tile(208, 128, 64), cluster=(2, 1), swap=True)
    ),
    "pingpong gather a": Case(spec(schedule="pingpong", a_load="gather"), a=ODD_ROW),
    "pingpong staged, 3 SMs": Case(spec(schedule="pingpong", sms=3), a=COL, b=COL, d=ODD_ROW, c=ODD_ROW),
    # operands swapped, K cut among CTAs
    "swapped": Case(spec(tile=Tile(16, 64, 64), swap=True)),
    "swapped, odd D col": Case(spec(tile=Tile(24, 64, 64), swap=True), d=ODD_COL, c=ODD_ROW),
    "K cut in a cluster": Case(
        spec(tile=Tile(128, 64, 32), split_k=2, split_reduction="cluster"), least_k=33
    ),
    "K cut through a workspace": Case(
        spec(tile=Tile(128, 64, 32), split_k=3, split_reduction="workspace"), d=ODD_ROW, least_k=65
    ),
    "K cut, added as parts come": Case(
        spec(tile=Tile(128, 64, 32), split_k=3, split_reduction="atomic"), d=ODD_ROW, least_k=65
    ),
    "K cut, added by a launch": Case(
        spec(tile=Tile(128, 64, 32), split_k=3, split_reduction="launch"), least_k=65
    ),
    "K cut in clusters, added by a launch": Case(
        spec(tile=Tile(64, 64, 32), cluster=(1, 1, 2), split_k=4, split_reduction="launch"),
        d=COL,
        least_k=97,
    ),
    "dynamic, in turn, 4 SMs": Case(
        spec(scheduler="dynamic", schedule="pingpong", cluster=(2, 1), sms=4), c=COL
    ),
    "stream-K, 3 SMs": Case(spec(scheduler="stream_k", sms=3), c=COL),
    # the other families
    "multistage": Case(spec(schedule="multistage")),
    "multistage, one stage": Case(spec(schedule="multistage", stages=1, scheduler="per_tile"), a=COL, b=COL),
    "multistage, staged": Case(spec(schedule="multistage", store="staged"), d=ODD_ROW),
    "simt bf16": Case(spec(schedule="simt"), a=ODD_ROW, b=ODD_COL, d=ODD_ROW),
    "simt fp32": Case(GemmSpec(), dtype=FP32, d_dtype=FP32, c_dtype=FP32, step=8),
    "simt fp32, odd": Case(
        GemmSpec(), a=ODD_ROW, b=ODD_COL, d=ODD_ROW, dtype=FP32, d_dtype=FP32, c_dtype=FP32
    ),
}
GEMMS = {case.spec: Gemm(case.spec, representative(case.spec)) for case in CASES.values()}


def compile_all(names: Iterable[str] = CASES, gpu: bool = False) -> None:
    """Compile every kernel of some cases, in parallel; of a case with C the kernel without C, too, on the GPU alone."""
    cases = [CASES[name] for name in names if name in CASES]
    problems = [(case, of) for case in cases for of in case.problems()[: 2 if gpu else 1]]
    kernel_cache.ensure([step.config for case, of in problems for step in plan(case.spec, of).steps])
