# SPDX-License-Identifier: Apache-2.0
"""Multiply the tokens of each expert of a mixture in one launch, and use a whole layer of experts.

python examples/moe.py
"""

import torch

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn

if __name__ == "__main__":
    gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    where, (hidden, inner) = ("cuda", (2048, 1024)) if gpu else ("cpu", (64, 32))
    tokens = torch.randn(96, hidden, device=where, dtype=torch.bfloat16)
    experts = torch.randn(4, hidden, 2 * inner, device=where, dtype=torch.bfloat16)

    # the rows of expert g end before offs[g]; the kernel reads offs on the device, so nothing waits for them
    offs = torch.tensor([40, 40, 73, 96], device=where)  # expert 1 has no token
    # SwiGLU is the launch's epilogue; without a GPU `fallback` runs the compiled kernel in the emulator
    h = cutegemm.grouped_mm(tokens, experts, offs, epilogue=epi.swiglu(), fallback="emulator")

    expected = torch.empty(96, inner, device=where, dtype=torch.float64)
    begin = 0
    for expert, end in zip(experts.double(), offs.tolist()):
        gate, up = (tokens[begin:end].double() @ expert).chunk(2, dim=-1)
        expected[begin:end], begin = torch.nn.functional.silu(gate) * up, end
    print(
        f"groups     relative error {((h.double() - expected).norm() / expected.norm()).item():.1e} against a loop"
    )

    # a layer: softmax routing, two grouped launches, and each token's weighted sum
    layer = nn.MoE(hidden, inner, experts=4, top_k=2, device=where, dtype=torch.bfloat16)
    y = layer(tokens)
    y.float().square().mean().backward()
    trained = [name for name, p in layer.named_parameters() if p.grad is not None]
    print(f"nn.MoE     {tuple(y.shape)}; gradients of {', '.join(trained)}")
