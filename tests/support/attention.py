# SPDX-License-Identifier: Apache-2.0
"""A model whose projections of one tensor are joined, and the original."""

import copy

import torch

from cutegemm import nn

NAMES = ("q_proj", "k_proj", "v_proj")


class Attention(torch.nn.Module):
    """Three projections of one tensor, of two widths, between other layers."""

    def __init__(self, bias):
        super().__init__()
        self.norm = torch.nn.LayerNorm(12)
        self.q_proj = torch.nn.Linear(12, 16, bias)
        self.k_proj = torch.nn.Linear(12, 8, bias)
        self.v_proj = torch.nn.Linear(12, 8, bias)
        self.o_proj = torch.nn.Linear(16, 12, bias)

    def forward(self, x):
        """Something of all of them."""
        x = self.norm(x)
        q, k, v = self.q_proj(x).view(*x.shape[:-1], 4, 4), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q.flatten(-2) * torch.cat((k, v), -1))


def pair(bias, **options):
    """(a converted model, the original)."""
    torch.manual_seed(0)
    theirs = Attention(bias)
    ours = copy.deepcopy(theirs)
    report = nn.convert(ours, fallback="reference", joined=[NAMES], **options)
    assert set(report.converted) == {*NAMES, "o_proj"} and not report.left
    return ours, theirs
