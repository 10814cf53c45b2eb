# SPDX-License-Identifier: Apache-2.0
"""Convert a torch model and train it: every linear layer, forward and backward, runs on our kernels.

python examples/train.py
"""

import torch

from cutegemm import nn

if __name__ == "__main__":
    gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    where = "cuda" if gpu else "cpu"
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    model = layers.to(where, torch.bfloat16)
    torch_model = torch.nn.Sequential(*layers)
    x = torch.randn(512, 64, device=where, dtype=torch.bfloat16)
    before = torch_model(x).detach().double()

    print(nn.convert(model))  # in place; the state dict keeps its names
    after = model(x).detach().double()
    print(f"relative error {((after - before).norm() / before.norm()).item():.1e} after conversion")

    target = torch.randn(512, 8, device=where, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(20):
        loss = torch.nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step:2d}: loss {loss.item():.3f}")
