# SPDX-License-Identifier: Apache-2.0
"""Groups of rows and along K for tests: ends of every kind, and launches that are checked against the reference."""

import itertools

import torch

import cutegemm
from cutegemm import Tile, emulator
from cutegemm.running.numerics.group_reference import bounds
from tests.support.numerics import assert_close
from tests.support.watched import RACES

SMALL = {"tile": Tile(64, 64, 64), "sms": 3, "cluster": (1, 1), "swap": False}
SWAPPED = {"tile": Tile(16, 64, 64), "sms": 3, "cluster": (1, 1), "swap": True}
ENDS = {
    "uneven": [1, 130, 130, 200],
    "all in one": [0, 0, 0, 200, 200],
    "decreasing and outside": [90, -7, 40, 1000, 3],
    "a tail": [65, 100],
    "more than a warp looks at": [*range(0, 80, 2), 60, *range(80, 200, 15)],
    "the last of many": [*[0] * 63, 130, 140],
}


class Groups:
    """What `emulator.run` runs."""

    def __init__(self, spec, told="offs", **named):
        self.spec, self.told, self.named = spec, told, named

    def run(self, a, b, ends, out, backend):
        """One launch."""
        told = {self.told: ends}
        return cutegemm.grouped_mm(a, b, **told, out=out, spec=self.spec, fallback=backend, **self.named)


def drawn(*shape):
    """Normal numbers in bf16, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def check_groups(
    spec, ends, shape=(200, 136, 96), told="offs", dtype=torch.int32, b=None, options=RACES, **named
):
    """Every group is right, other rows are zeros or untouched, and the run has no findings."""
    m, n, k = shape
    count = len(ends) - (told == "cu_seqlens")
    a, b = drawn(m, k), drawn(count, k, n) if b is None else b
    d, numbers = torch.full((m, n), 7.0).bfloat16(), torch.tensor(ends, dtype=dtype)
    run = emulator.run(Groups(spec, told, **named), a, b, numbers, d, options=options)
    assert not run.findings
    rows = bounds(numbers, m, int(told == "cu_seqlens")).tolist()
    for group, (first, end) in enumerate(itertools.pairwise(rows)):
        if end > first:
            own = {"alpha": named.get("alpha", 1.0)}
            assert_close(d[first:end], a[first:end], b[group], **own)
    rest = torch.cat([d[: rows[0]], d[rows[-1] :]])
    assert torch.all(rest == (7.0 if named.get("tail") == "undefined" else 0.0))


def check_depth(spec, a, b, ends, options=RACES):
    """A product for each group, added to what is there; an empty one is beta * C."""
    ends = torch.tensor(ends)
    rows = bounds(ends, a.shape[1]).tolist()
    c = drawn(len(ends), a.shape[0], b.shape[1]).float()
    found, told = c.clone(), c.clone()
    run = emulator.run(Groups(spec, c=found, beta=1.0, alpha=0.5), a, b, ends, found, options=options)
    assert not run.findings
    for group, (first, end) in enumerate(itertools.pairwise(rows)):
        told[group] += 0.5 * a[:, first:end].float() @ b[first:end].float()
    torch.testing.assert_close(found, told, rtol=1e-5, atol=1e-4)


GPU_SHAPES = [(16, 72, 64), (1000, 1536, 2048), (4096, 4096, 768)]


class OnGpu:
    """Groups of rows on a GPU: (M, K) times a B each, D, and a captured graph of one call that reads ends anew."""

    def __init__(self, shape, groups):
        m, n, k = shape
        self.m, self.groups = m, groups
        self.draw = torch.Generator("cuda").manual_seed(m + groups)
        self.a = torch.randn(m, k, generator=self.draw, device="cuda").bfloat16()
        self.b = torch.randn(groups, n, k, generator=self.draw, device="cuda").bfloat16().mT
        self.d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        self.ends = torch.zeros(groups, dtype=torch.int32, device="cuda")

    def captured(self, **call):
        """A graph of a call whose arguments are these; it is launched once before."""
        call = {"out": self.d, "fallback": "error", **call}
        cutegemm.grouped_mm(self.a, self.b, self.ends, **call)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cutegemm.grouped_mm(self.a, self.b, self.ends, **call)
        return graph

    def moved(self):
        """New ends, drawn; D filled with 7. Where groups begin, and the last one's end."""
        cuts = torch.randint(0, self.m + 1, (self.groups,), generator=self.draw, device="cuda").sort().values
        self.ends.copy_(cuts)
        self.d.fill_(7.0)
        return [0, *cuts.tolist()]
