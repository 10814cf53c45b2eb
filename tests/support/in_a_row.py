# SPDX-License-Identifier: Apache-2.0
"""Two runs of one spec on one stream and one workspace, every launch of which may begin before those before it end."""

from __future__ import annotations

import torch

from cutegemm import GemmSpec, problem
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Launch, Options, Result, run_sequence, tensor_buffer
from cutegemm.emulator.launching import front
from cutegemm.gemm import Gemm
from cutegemm.gemm.recorded_launches import counters_offset
from cutegemm.planning.planner import plan
from tests.support.numerics import assert_close


class InARow:
    """D = A B, then E = D B, behind a launch that is unknown; B is constant.

    Attributes:
        kernels: PTX by the step's name.
        parsed: what runs in the place of a PTX.
    """

    def __init__(self, spec: GemmSpec, rows: int, width: int) -> None:
        of, gemm = problem(rows, width, width), Gemm(spec)
        made = plan(spec, of)
        generator = torch.Generator().manual_seed(1)
        self.a, self.b = (
            torch.randn(s, generator=generator).bfloat16() for s in ((rows, width), (width, width))
        )
        self.d, self.e = (torch.empty(rows, width, dtype=torch.bfloat16) for _ in range(2))
        self.workspace = torch.zeros(counters_offset(made) + made.counter_bytes, dtype=torch.uint8)
        self.kernels = {step.name: kernel_cache.artifact(step.config).ptx for step in made.steps}
        self.parsed = {ptx: front.kernel_of(ptx) for ptx in self.kernels.values()}
        names = list(self.kernels)
        self.launches = [
            (self.kernels[names[i]], x)
            for x_in, x_out in ((self.a, self.d), (self.d, self.e))
            for i, x in enumerate(
                gemm.launches(
                    of,
                    {"a": x_in.data_ptr(), "b": self.b.data_ptr(), "d": x_out.data_ptr()},
                    self.workspace.data_ptr(),
                )
            )
        ]

    def __call__(self, options: Options) -> Result:
        """Run them; both results are right."""
        tensors = {"A": self.a, "B": self.b, "D": self.d, "E": self.e, "workspace": self.workspace}
        buffers = [tensor_buffer(x, name) for name, x in tensors.items()]
        launches = [
            Launch(self.parsed[ptx], grid=x.grid, block=x.block, cluster=x.cluster, smem_bytes=x.smem,
                   params=list(x.params), buffers=buffers, pdl=True)
            for ptx, x in self.launches
        ]  # fmt: skip
        result = run_sequence(launches, options, constant=[self.b])
        assert_close(self.d, self.a, self.b)
        assert_close(self.e, self.d, self.b)
        return result
