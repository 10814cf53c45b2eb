# SPDX-License-Identifier: Apache-2.0
"""Multiply in fp8: quantise and multiply with scales, train a layer, convert a model.

python examples/fp8.py
"""

import torch

import cutegemm
from cutegemm import nn


def error(found, expected):
    """The norm of the difference over that of what is expected."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


if __name__ == "__main__":
    gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    where, (m, n, k) = ("cuda", (4096, 4096, 4096)) if gpu else ("cpu", (128, 192, 256))
    x, weight = (torch.randn(rows, k, device=where, dtype=torch.bfloat16) for rows in (m, n))
    expected = x.double() @ weight.double().T

    # e4m3 values and their scales: blocks of 1 x 128 elements of x, of 128 x 128 of the weight
    a, scale_a = cutegemm.quantize(x, ("block", 1, 128))
    b, scale_b = cutegemm.quantize(weight, ("block", 128, 128))
    # without a GPU `fallback` runs the compiled kernel in the emulator
    y = cutegemm.linear(a, b, scale_a=scale_a, scale_b=scale_b, fallback="emulator")
    print(f"blocks     relative error {error(y, expected):.1e} against fp64, of the unquantised operands")

    # a layer that is trained in fp8: e4m3 forward, e5m2 gradients, and x and weight stay bf16
    w = torch.nn.Parameter(weight)
    y = cutegemm.linear(x, w, fp8="row")
    y.backward(torch.randn_like(y))
    print(f"training   relative error {error(y, expected):.1e}; the weight's gradient is {w.grad.dtype}")

    # a model whose weights are stored in 8 bits, and whose inputs are quantised by rows
    layers = torch.nn.Sequential(torch.nn.Linear(k, n), torch.nn.GELU(), torch.nn.Linear(n, k))
    model = layers.to(where, torch.bfloat16).eval()
    before = model(x).detach()
    print(nn.convert(model, weights="fp8", activations="fp8"))
    print(f"converted  relative error {error(model(x).detach(), before):.1e} against bf16")
