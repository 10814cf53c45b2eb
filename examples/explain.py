# SPDX-License-Identifier: Apache-2.0
"""Why a kernel was chosen, and what another choice would change; needs no GPU.

python examples/explain.py
"""

import cutegemm
from cutegemm import GemmSpec, Tile, emulator, problem

if __name__ == "__main__":
    of = problem(4096, 4096, 4096)
    plan = cutegemm.plan(GemmSpec(), of)
    print(plan)

    other = cutegemm.plan(GemmSpec(tile=Tile(128, 256, 64)), of)
    print(f"\nwaves: {plan.waves:.2f}, with 128 x 256 tiles {other.waves:.2f}")
    print(f"arithmetic intensity: {of.flops / of.min_bytes:.0f} FLOP a byte of device memory")

    # what the compiled kernel does, counted on a problem that a CPU runs in a second
    import torch

    small = problem(256, 256, 256)
    gemm = cutegemm.build(GemmSpec(tile=Tile(128, 64, 64)), small)
    a, b = (torch.randn(256, 256, dtype=torch.bfloat16) for _ in range(2))
    run = emulator.run(gemm, a, b)
    print(f"\nregisters {gemm.resources.registers}, L2 reads {run.counters['l2_read_bytes']:,.0f} bytes")
    expected = a.double() @ b.double()
    print(f"relative error {((run.d.double() - expected).norm() / expected.norm()).item():.1e}")
