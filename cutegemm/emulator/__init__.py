# SPDX-License-Identifier: Apache-2.0
"""A functional emulator of sm_90a PTX on the CPU: kernels run exactly as compiled, on any machine.

    run = cutegemm.emulator.run(gemm, a, b, c, alpha=1.0, beta=0.5)      # CPU tensors; run.d, run.races, run.counters
    report = launch(Module.parse(ptx).kernel(), Launch(grid=..., block=..., params=[...], buffers=[...]))

It knows nothing of how a kernel was planned or written: only its PTX, its launch and its memory.
"""

from cutegemm.emulator.front import Run, Step, run, run_steps, tensor_buffer
from cutegemm.emulator.launch import Launch, Options, Report, launch
from cutegemm.emulator.memory import Buffer
from cutegemm.emulator.parse import Kernel, Module
from cutegemm.emulator.tables import compare, profile

__all__ = [
    "Buffer",
    "Kernel",
    "Launch",
    "Module",
    "Options",
    "Report",
    "Run",
    "Step",
    "compare",
    "launch",
    "profile",
    "run",
    "run_steps",
    "tensor_buffer",
]
