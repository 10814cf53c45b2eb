# SPDX-License-Identifier: Apache-2.0
"""Write a fusion as a Python function and get one kernel for it; compare with torch and, on a GPU, time both.

python examples/fuse.py
"""

import torch
from torch.utils.benchmark import Timer

import cutegemm
from cutegemm import GemmSpec
from cutegemm import epilogue as epi


@epi.define
def mlp(acc, *, bias: epi.Row, residual: epi.Matrix, scale: epi.Scalar):
    """One layer: its result, its activations, and the largest of them."""
    h = epi.gelu(acc * scale + bias)
    return epi.Output(d=h + residual, hidden=epi.Store(h, dtype="bf16"), amax=epi.AbsMax(h))


def eager(a, b, bias, residual, scale):
    """The same in torch."""
    h = torch.nn.functional.gelu(a @ b * scale + bias)
    return h + residual, h, h.abs().max()


if __name__ == "__main__":
    gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    device, (m, n, k) = ("cuda", (8192, 4096, 1024)) if gpu else ("cpu", (200, 264, 96))
    a, b, bias, residual = (
        torch.randn(*shape, dtype=torch.bfloat16, device=device) for shape in ((m, k), (k, n), (n,), (m, n))
    )
    gemm = cutegemm.build(GemmSpec(epilogue=mlp))
    print(gemm.explain(cutegemm.problem(m, n, k, epilogue=mlp)))

    named = {"bias": bias, "residual": residual, "scale": 0.05}
    out = gemm.run(a, b, **named, backend=None if gpu else "emulator")
    d, hidden, amax = eager(a.double(), b.double(), bias, residual, 0.05)
    error = ((out.d.double() - d).norm() / d.norm()).item()
    print(f"\nrelative error {error:.1e} against torch in fp64; amax {out.amax:.4f} for {amax:.4f}")
    assert error < 5e-3

    if gpu:
        calls = ("gemm.run(a, b, **named)", "eager(a, b, bias, residual, 0.05)")
        ours, theirs = (Timer(x, globals=globals()).blocked_autorange().median * 1e6 for x in calls)
        print(f"one kernel {ours:.0f} us; torch {theirs:.0f} us")

    # what the gradient reads of the forward product is saved by the forward itself
    print(f"\nswiglu that saves for its gradient:\n{epi.with_saved(epi.swiglu())}")
    gradient = epi.backward(epi.swiglu())  # of the upstream gradient with respect to gate and up
    print(f"\ngradient of swiglu, as an epilogue of the backward GEMM:\n{gradient}")
