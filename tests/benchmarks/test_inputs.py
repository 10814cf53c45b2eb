# SPDX-License-Identifier: Apache-2.0
"""Input sets: how many, how large, how laid out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import inputs
from benchmarks.results import Case


def case(m: int, n: int, k: int, majors: str = "kk", dtype: str = "bf16", batch: int = 1) -> Case:
    """A case of this size."""
    return Case(suite="square", dtype=dtype, majors=majors, m=m, n=n, k=k, batch=batch)


@given(
    st.integers(1, 20000), st.integers(1, 20000), st.integers(1, 20000), st.sampled_from(list(inputs.DTYPES))
)
def test_rotation_evicts_l2_and_stays_bounded(m, n, k, dtype):
    """Sets together exceed twice the L2, and no set more than needed is made beyond two."""
    problem = case(m, n, k, dtype=dtype)
    count, size = inputs.set_count(problem), inputs.set_bytes(problem)
    assert count >= 2 and count * size >= 2 * 60 * 2**20
    assert count == 2 or (count - 1) * size < 2 * 60 * 2**20


@pytest.mark.parametrize("majors", inputs.MAJORS)
def test_sets_have_shapes_strides_and_bytes(majors):
    """Shapes, unit-stride axes and bytes are those of the case, and no two sets are alike."""
    problem = case(3, 5, 7, majors=majors)
    first, second = inputs.make_sets(problem, "cpu", 2)
    assert (first.a.shape, first.b.shape, first.out.shape) == ((3, 7), (7, 5), (3, 5))
    assert first.a.stride() == ((7, 1) if majors[0] == "k" else (1, 3))
    assert first.b.stride() == ((5, 1) if majors[1] == "n" else (1, 7))
    assert sum(x.numel() * x.element_size() for x in (first.a, first.b, first.out)) == inputs.set_bytes(
        problem
    )
    assert first.a.dtype == torch.bfloat16 and not torch.equal(first.a, second.a)
    assert torch.equal(first.a, inputs.make_sets(problem, "cpu", 1)[0].a), (
        "the same seed gives the same inputs"
    )


@pytest.mark.parametrize("majors", inputs.MAJORS)
def test_batched_sets(majors):
    """A batch stands before rows and columns, each of its products laid out as a single one is."""
    problem = case(3, 5, 7, majors=majors, batch=2)
    x = inputs.make_sets(problem, "cpu", 1)[0]
    assert (x.a.shape, x.b.shape, x.out.shape) == ((2, 3, 7), (2, 7, 5), (2, 3, 5))
    single = inputs.make_sets(case(3, 5, 7, majors=majors), "cpu", 1)[0]
    assert (x.a[0].stride(), x.b[1].stride()) == (single.a.stride(), single.b.stride())
    assert sum(t.numel() * t.element_size() for t in (x.a, x.b, x.out)) == inputs.set_bytes(problem)
    assert not torch.equal(x.a[0], x.a[1])
