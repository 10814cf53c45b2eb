# SPDX-License-Identifier: Apache-2.0
"""Measure candidates for your shapes and keep the fastest; on a machine without a GPU show what would be measured.

python examples/tune.py
"""

import torch

import cutegemm
from cutegemm import GemmSpec, problem

if __name__ == "__main__":
    gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    of = problem(2048, 2112, 7168) if gpu else problem(100, 72, 136)
    if gpu:
        print(cutegemm.tune(GemmSpec(), [of], candidates=12))
    else:
        print("\n".join(str(cutegemm.plan(GemmSpec(), of).why).splitlines()[:12]))

    # from now on `build` and `run` take what was measured
    gemm = cutegemm.build(GemmSpec(), of)
    print(f"chosen by {gemm.plan.chosen_by or 'the cost model'}")
    where = "cuda" if gpu else "cpu"
    a = torch.randn(of.m, of.k, dtype=torch.bfloat16, device=where)
    b = torch.randn(of.k, of.n, dtype=torch.bfloat16, device=where)
    d, expected = gemm.run(a, b), a.double() @ b.double()
    print(f"relative error {((d.double() - expected).norm() / expected.norm()).item():.1e}")
