# SPDX-License-Identifier: Apache-2.0
"""One launch multiplies groups of rows, whose ends lie in memory, with a matrix each: on the emulator, races on."""

import itertools

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm.errors import InputError, PlanError
from cutegemm.running.grouped_mm import multiply_groups
from tests.support.numerics import assert_close

SMALL = {"tile": Tile(64, 64, 64), "sms": 3}
KERNELS = {
    "cooperative": {**SMALL, "cluster": (1, 1), "schedule": "cooperative"},
    "pairs share B": {"tile": Tile(64, 64, 64), "sms": 4, "cluster": (2, 1)},
    "pairs share A": {"tile": Tile(128, 64, 64), "sms": 4, "cluster": (1, 2), "consumers": 2},
    "pingpong": {**SMALL, "cluster": (1, 1), "schedule": "pingpong"},
    "multistage": {**SMALL, "cluster": (1, 1), "schedule": "multistage"},
    "gathered": {**SMALL, "a_load": "gather", "b_load": "gather"},
    "elements": {**SMALL, "a_load": "cp_async", "b_load": "tma"},
}
ENDS = {
    "uneven": [1, 130, 130, 200],
    "all in one": [0, 0, 0, 200, 200],
    "decreasing and outside": [90, -7, 40, 1000, 3],
    "a tail": [65, 100],
    "more than a warp looks at": [*range(0, 80, 2), 60, *range(80, 200, 3)],
    "the last of many": [*[0] * 63, 130, 140],
}


class Groups:
    """What `emulator.run` runs."""

    def __init__(self, spec):
        self.spec = spec

    def run(self, *tensors, backend, **named):
        """One launch."""
        return multiply_groups(*tensors, spec=self.spec, **named)


def check_groups(spec, ends, shape=(200, 136, 96), **named):
    """Every group is right, what lies behind the last is untouched, and the run has no findings."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(m + n + k + len(ends))
    a = torch.randn(m, k, generator=generator).bfloat16()
    b = torch.randn(len(ends), k, n, generator=generator).bfloat16()
    d = torch.full((m, n), 7.0).bfloat16()
    run = emulator.run(Groups(spec), a, b, torch.tensor(ends, dtype=torch.int32), d, **named)
    assert not run.findings
    rows = list(itertools.accumulate((min(x, m) for x in ends), max, initial=0))
    for group, (first, end) in enumerate(itertools.pairwise(rows)):
        if end > first:
            assert_close(d[first:end], a[first:end], b[group], alpha=named.get("alpha", 1.0))
    assert torch.all(d[rows[-1] :] == 7.0)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kind_of_kernel_follows_the_groups(name):
    """Empty groups, groups of one row and of several tiles, whatever loads them and however CTAs share tiles."""
    check_groups(GemmSpec(**KERNELS[name]), ENDS["uneven"], alpha=2.0)


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_groups_are_disjoint_whatever_their_ends(ends):
    """Ends that decrease or lie outside count as the nearest row that they may be."""
    check_groups(GemmSpec(**KERNELS["cooperative"]), ends)


def test_what_the_spec_leaves_open_is_chosen():
    """The planner's own tile, stages and cluster for few rows a group."""
    check_groups(GemmSpec(sms=4), ENDS["uneven"], (200, 72, 128))


def test_what_cannot_be():
    """Refused before anything is written: a major that TMA cannot begin anywhere in, TMA stores, wrong ends."""
    a, b, ends = torch.zeros(64, 64).bfloat16(), torch.zeros(2, 64, 64).bfloat16(), torch.zeros(2).int()
    with pytest.raises(PlanError, match="K-major A"):
        multiply_groups(a.T, b, ends, spec=GemmSpec(**SMALL, a_load="tma"))
    with pytest.raises(InputError, match=r"ends\.dtype"):
        multiply_groups(a, b, ends.long())
    with pytest.raises(InputError, match=r"ends\.shape.*must be \(2,\)"):
        multiply_groups(a, b, ends[:1])
    with pytest.raises(InputError, match="overlaps a"):
        multiply_groups(a, b, ends, a)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(16, 72, 64), (1000, 1536, 2048), (4096, 4096, 768)])
@pytest.mark.parametrize("groups", [1, 8, 128])
def test_groups_on_the_gpu(shape, groups):
    """The planner's kernels give every group's product and write no row behind the last one, also when replayed."""
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(m + groups)
    a = torch.randn(m, k, generator=generator, device="cuda").bfloat16()
    b = torch.randn(groups, n, k, generator=generator, device="cuda").bfloat16().mT
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    ends = torch.zeros(groups, dtype=torch.int32, device="cuda")
    multiply_groups(a, b, ends, d)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multiply_groups(a, b, ends, d)
    for seed in range(3):
        cuts = torch.randint(0, m + 1, (groups,), generator=torch.Generator().manual_seed(seed))
        ends.copy_(cuts.sort().values)
        d.fill_(7.0)
        graph.replay()
        rows = [0, *cuts.sort().values.tolist()]
        for group, (first, end) in enumerate(itertools.pairwise(rows)):
            if end > first:
                assert_close(d[first:end], a[first:end], b[group])
        assert torch.all(d[rows[-1] :] == 7.0)
