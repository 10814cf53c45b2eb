# SPDX-License-Identifier: Apache-2.0
"""Ends of groups that are drawn: negative, decreasing, beyond the end, in every form; and more than 1,024 groups."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm
from cutegemm import GemmSpec, emulator
from tests.support.groups import SMALL, Groups
from tests.support.profile import cases
from tests.support.watched import RACES

EXTENT, K, N = 72, 24, 40  # of the groups' axis, and of the others
# form -> the shapes of A, B and D for a number of groups
FORMS = {
    "rows": lambda g: ((EXTENT, K), (g, K, N), (EXTENT, N)),
    "columns": lambda g: ((g, N, K), (K, EXTENT), (N, EXTENT)),
    "depth": lambda g: ((N, EXTENT), (EXTENT, K), (g, N, K)),
    "masked": lambda g: ((g, EXTENT, K), (g, K, N), (g, EXTENT, N)),
}


def whole(shape, seed):
    """Integers from -2 to 2 in bf16: all sums are exact in fp32."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def spans(ends, name, extent):
    """The first index and the end of each group, as the docs say: an illegal end counts as the nearest legal one."""
    if name == "counts":
        return [(0, min(max(x, 0), extent)) for x in ends]
    found = [] if name == "cu_seqlens" else [0]
    for x in ends:
        found.append(max(min(max(x, 0), extent), *found[-1:], 0))
    return list(itertools.pairwise(found))


def told(form, a, b, places, shape):
    """D of this shape by a loop over groups, in fp32; what belongs to no group is 0."""
    d = torch.zeros(shape)
    for g, (first, end) in enumerate(places):
        if form == "rows":
            d[first:end] = a[first:end].float() @ b[g].float()
        elif form == "columns":
            d[:, first:end] = a[g].float() @ b[:, first:end].float()
        elif form == "depth":
            d[g] = a[:, first:end].float() @ b[first:end].float()
        else:
            d[g, first:end] = a[g, first:end].float() @ b[g].float()
    return d


@st.composite
def calls(draw, form):
    """(name of the tensor of ends, its values, its type)."""
    name = "counts" if form == "masked" else draw(st.sampled_from(["offs", "cu_seqlens"]))
    bits = draw(st.sampled_from([32, 64]))
    end = st.integers(-3, EXTENT + 3) | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    ends = draw(st.lists(end, min_size=1 + (name == "cu_seqlens"), max_size=6))
    return name, ends, getattr(torch, f"int{bits}")


def check(form, call, backend):
    """D has every group's product and zeros elsewhere, whatever it held before."""
    name, ends, dtype = call
    of_a, of_b, of_d = FORMS[form](len(ends) - (name == "cu_seqlens"))
    a, b, found, numbers = (
        whole(of_a, 0),
        whole(of_b, 1),
        torch.full(of_d, 7.0),
        torch.tensor(ends, dtype=dtype),
    )
    if backend == "emulator":
        run = emulator.run(Groups(GemmSpec(**SMALL), name), a, b, numbers, found, options=RACES)
        assert not run.findings
    else:
        cutegemm.grouped_mm(a, b, **{name: numbers}, out=found, fallback=backend)
    assert torch.equal(found, told(form, a, b, spans(ends, name, EXTENT), of_d))


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
def test_the_reference_takes_any_ends(form, data):
    """As the nearest legal ones, in 32 and 64 bits, with the first group's begin or without."""
    check(form, data.draw(calls(form)), "reference")


@pytest.mark.sliced
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=cases(8, 200))
@given(st.data())
def test_a_kernel_takes_any_ends(form, data):
    """The same on the emulator, with races on."""
    check(form, data.draw(calls(form)), "emulator")


@pytest.mark.parametrize("form", ["rows", "depth"])
def test_a_launch_has_more_than_1024_groups(form):
    """Of 0 to 3 rows each; some ends decrease or lie outside."""
    draw, count, extent = torch.Generator().manual_seed(0), 1500, 1600
    ends = torch.randint(0, extent + 1, (count,), generator=draw).sort().values
    ends[[3, 700, 1400]] = torch.tensor([-9, 10, extent + 5])
    of_a, of_b = ((extent, 16), (count, 16, 16)) if form == "rows" else ((16, extent), (extent, 16))
    a, b = whole(of_a, 0), whole(of_b, 1)
    found = cutegemm.grouped_mm(
        a, b, ends, out_dtype=torch.float32, spec=GemmSpec(**SMALL), fallback="emulator"
    )
    places = spans(ends.tolist(), "offs", extent)
    assert places[-1][1] == extent and torch.equal(found, told(form, a, b, places, found.shape))
