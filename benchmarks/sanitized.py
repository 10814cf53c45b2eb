# SPDX-License-Identifier: Apache-2.0
"""Small problems of every way in which CTAs meet or threads load, to be run under compute-sanitizer.

    compute-sanitizer --tool memcheck python -m benchmarks.sanitized
    compute-sanitizer --tool racecheck --error-exitcode 9 python -m benchmarks.sanitized --only atomic,launch
    compute-sanitizer --tool synccheck python -m benchmarks.sanitized

Each result is compared with fp64; the command exits 1 where one is wrong. Racecheck sees shared memory; what meets in
global memory the emulator's detector sees (`tests/kernels`).
"""

from __future__ import annotations

import argparse
import math
import sys

import torch

import cutegemm
from cutegemm import DType, GemmSpec, Tile

SMALL = Tile(64, 64, 64)
# name -> (spec, (m, n, k))
CASES: dict[str, tuple[GemmSpec, tuple[int, int, int]]] = {
    "launch": (GemmSpec(tile=SMALL, swap=False, split_k=3, split_reduction="launch"), (136, 72, 520)),
    # nine parts: two warpgroups of a CTA add them up
    "launch_adders": (GemmSpec(tile=SMALL, swap=False, split_k=9, split_reduction="launch"), (136, 72, 1032)),
    "launch_clusters": (
        GemmSpec(tile=SMALL, swap=False, cluster=(1, 1, 2), split_k=4, split_reduction="launch"),
        (136, 72, 520),
    ),
    "cluster": (GemmSpec(tile=SMALL, swap=False, cluster=(1, 1, 4), sms=8, stages=2), (136, 136, 520)),
    "cluster_pairs": (GemmSpec(tile=SMALL, swap=False, cluster=(2, 1, 2), sms=8), (136, 136, 520)),
    "workspace": (
        GemmSpec(tile=SMALL, swap=False, split_k=3, split_reduction="workspace", sms=8),
        (136, 136, 520),
    ),
    "atomic": (
        GemmSpec(tile=SMALL, swap=False, split_k=3, split_reduction="atomic", sms=8),
        (136, 136, 520),
    ),
    "atomic_clusters": (
        GemmSpec(tile=Tile(16, 64, 64), swap=True, cluster=(1, 1, 2), split_k=4, split_reduction="atomic"),
        (24, 136, 520),
    ),
    "stream_k": (GemmSpec(tile=SMALL, swap=False, scheduler="stream_k", sms=5, stages=2), (136, 136, 520)),
    "dynamic": (
        GemmSpec(tile=SMALL, swap=False, scheduler="dynamic", cluster=(2, 1), sms=4, stages=2),
        (264, 136, 264),
    ),
    # words by TMA, in boxes
    "shift": (GemmSpec(tile=SMALL, swap=False, a_load="shift", b_load="shift"), (133, 77, 259)),
    # of more columns than a box has: words by cp.async
    "shift_wide": (
        GemmSpec(tile=Tile(64, 256, 16), stages=3, swap=False, b_load="shift", store="direct"),
        (66, 43, 80),
    ),
    "cp_async": (
        GemmSpec(tile=SMALL, swap=False, a_load="cp_async", b_load="cp_async"),
        (130, 78, 258),
    ),
    # D of an odd leading dimension in whole sectors, from a tile that ends beyond it
    "lines": (GemmSpec(tile=SMALL, swap=False, store="staged"), (133, 77, 264)),
    "lines_swapped": (GemmSpec(tile=Tile(32, 64, 64), swap=True, store="staged"), (21, 77, 264)),
    # so narrow that a warp's last lines lie beyond D
    "lines_few": (GemmSpec(tile=Tile(64, 16, 64), swap=False, d_dtype="fp32", store="staged"), (69, 3, 264)),
}
TOLERANCE = 5e-3  # Frobenius norm of the error over that of the product, of results in bf16


def names(text: str) -> list[str]:
    """Cases, comma-separated.

    Raises:
        ArgumentTypeError: a word is none.
    """
    found = text.split(",")
    if unknown := sorted(set(found) - set(CASES)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be of {', '.join(CASES)}")
    return found


def error_of(name: str, device: str = "cuda", backend: str | None = None) -> float:
    """The larger relative error of a case's products, D row-major and column-major.

    Each runs twice, so that what a run leaves behind meets the next one.
    """
    spec, (m, n, k) = CASES[name]
    generator = torch.Generator(device).manual_seed(1)
    a, b = (
        torch.randn(x, generator=generator, device=device, dtype=torch.float32).bfloat16()
        for x in ((m, k), (k, n))
    )
    dtype = torch.float32 if spec.d_dtype is DType.FP32 else torch.bfloat16
    gemm = cutegemm.build(spec)
    wanted, errors = a.double() @ b.double(), []
    for shape, axes in (((m, n), (0, 1)), ((n, m), (1, 0))):
        out = torch.full(shape, torch.nan, device=device, dtype=dtype).permute(axes)
        for _ in range(2):
            gemm.run(a, b, out=out, backend=backend)
        errors.append(float((out.double() - wanted).norm() / wanted.norm()))
    return max(errors, key=lambda x: (math.isnan(x), x))


def main(arguments: list[str]) -> int:
    """Run the command; 1 where a result is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sanitized",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=names, default=list(CASES), help="cases, comma-separated")
    given, wrong = parser.parse_args(arguments), []
    for name in given.only:
        error = error_of(name)
        if not error <= TOLERANCE:
            wrong.append(name)
        print(f"{'ok' if error <= TOLERANCE else 'WRONG':5} {name:16} relative error {error:.1e}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
