# SPDX-License-Identifier: Apache-2.0
"""Declare a GEMM, build its Hopper kernel, check it against torch; on a GPU time it, without one count what it does.

python examples/quickstart.py
"""

import statistics

import torch

import cutegemm
from cutegemm import GemmSpec, Tile, emulator


def microseconds(run, rounds: int = 30) -> float:
    """Median time of one launch."""
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    spec = GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1), raster=("m", 8))
    gemm = cutegemm.build(spec)
    print(gemm)  # the plan, and what the compiled kernel uses

    size = 4096 if gpu else 256
    a, b, c = (
        torch.randn(size, size, dtype=torch.bfloat16, device="cuda" if gpu else "cpu") for _ in range(3)
    )
    if gpu:
        d = gemm.run(a, b, c, alpha=2.0, beta=0.5)
    else:  # nothing switches to the emulator by itself
        emulated = emulator.run(gemm, a, b, c, alpha=2.0, beta=0.5)
        d = emulated.d
        print(emulator.profile(emulated.reports[0]))
        print(f"races and leftovers found: {len(emulated.findings)}")
    expected = 2.0 * (a.double() @ b.double()) + 0.5 * c.double()
    error = ((d.double() - expected).norm() / expected.norm()).item()
    where = torch.cuda.get_device_name() if gpu else "the emulator: the same kernel, run on this CPU"
    print(f"{size}^3 on {where}: relative error {error:.1e} against torch in fp64")
    assert error < 5e-3

    if gpu:
        ours = microseconds(lambda: gemm.run(a, b, out=d))
        theirs = microseconds(lambda: torch.matmul(a, b, out=d))
        tflops = 2 * size**3 / 1e6
        print(
            f"cutegemm {ours:.0f} us, {tflops / ours:.0f} TFLOP/s; torch.matmul {theirs:.0f} us, {tflops / theirs:.0f}"
        )
