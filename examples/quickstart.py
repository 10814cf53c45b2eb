# SPDX-License-Identifier: Apache-2.0
"""Build a GEMM, run it and check it: on a Hopper GPU timed beside torch, elsewhere in the emulator.

python examples/quickstart.py              ten lines about the kernel, its run and its error
python examples/quickstart.py --profile    without a GPU also the emulator's counters
"""

import sys

import torch
from torch.utils.benchmark import Timer

import cutegemm
from cutegemm import GemmSpec, emulator

if __name__ == "__main__":
    gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    size = 4096 if gpu else 256
    of = cutegemm.problem(size, size, size)
    gemm = cutegemm.build(GemmSpec(), of)
    plan = gemm.plan
    print(f"problem    {size} x {size} x {size}, bf16, row-major")
    print(f"kernel     {plan.config.family}: tile {plan.config.tile}, {plan.config.stages} stages")
    print(f"cluster    {plan.config.cluster}, {plan.waves:.2f} waves of CTA tiles")
    print(f"smem       {plan.smem_bytes:,} bytes of {plan.config.limits.smem_bytes:,}")
    print(f"registers  {gemm.resources.registers} a thread, {gemm.resources.frame_bytes} bytes spilled")
    print(f"chosen by  {plan.chosen_by or 'the cost model'}")

    where = "cuda" if gpu else "cpu"
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=where) for _ in range(2))
    if gpu:
        d = gemm.run(a, b)
    else:  # nothing switches to the emulator by itself
        run = emulator.run(gemm, a, b)
        d = run.d
        print(f"emulated   {run.counters.get('wgmma', 0):,.0f} wgmma, {len(run.races)} races found")
        if "--profile" in sys.argv:
            print(emulator.profile(run.reports[0]))
    expected = a.double() @ b.double()
    error = ((d.double() - expected).norm() / expected.norm()).item()
    print(f"checked    relative error {error:.1e} against fp64 (bf16 rounding: 1.7e-03)")
    assert error < 5e-3

    if gpu:
        calls = ("gemm.run(a, b, out=d)", "torch.matmul(a, b, out=d)")
        ours, theirs = (Timer(x, globals=globals()).blocked_autorange().median * 1e6 for x in calls)
        print(f"timed      {ours:.0f} us, torch.matmul {theirs:.0f} us")
    print("next       cutegemm explain 4096 4096 4096; docs/tutorial.md")
