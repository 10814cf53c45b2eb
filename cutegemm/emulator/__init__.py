# SPDX-License-Identifier: Apache-2.0
"""A functional emulator of sm_90a PTX on the CPU: kernels run exactly as compiled, on any machine.

    run = cutegemm.emulator.run(gemm, a, b, c, alpha=1.0, beta=0.5)      # CPU tensors; run.d, run.races, run.counters
    result = run_ptx(ptx, grid=4, block=128, args=[x, y, 100])           # any PTX: result.findings, result.counters
    result = run_sequence([Launch(ptx, grid=4, block=128, args=[x, y], pdl=True), ...])
    report = launch(Module.parse(ptx).kernel(), Launch(grid=..., block=..., params=[...], buffers=[...]))

It knows nothing of how a kernel was planned or written: only its PTX, its launch and its memory.
"""

from cutegemm.emulator.launching.arguments import tensor_map
from cutegemm.emulator.launching.front import (
    Run,
    Step,
    output,
    run,
    run_ptx,
    run_sequence,
    run_steps,
    tensor_buffer,
)
from cutegemm.emulator.launching.launch import launch
from cutegemm.emulator.launching.report import Report, Result
from cutegemm.emulator.launching.request import Launch, Options
from cutegemm.emulator.launching.tables import compare, profile
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module
from cutegemm.emulator.state.memory import Buffer
from cutegemm.emulator.watch.coverage import Coverage
from cutegemm.emulator.watch.findings import Finding

__all__ = [
    "Buffer",
    "Coverage",
    "Finding",
    "Kernel",
    "Launch",
    "Module",
    "Options",
    "Report",
    "Result",
    "Run",
    "Step",
    "compare",
    "launch",
    "output",
    "profile",
    "run",
    "run_ptx",
    "run_sequence",
    "run_steps",
    "tensor_buffer",
    "tensor_map",
]
