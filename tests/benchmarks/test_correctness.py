# SPDX-License-Identifier: Apache-2.0
"""The check before timing accepts right results and catches each kind of wrong one."""

import pytest
import torch

from benchmarks import correctness, inputs
from benchmarks.results import Case


def one_set(dtype: str = "bf16", m: int = 70, n: int = 90, k: int = 130) -> inputs.InputSet:
    """One set of operands on the CPU."""
    return inputs.make_sets(Case(suite="odd", dtype=dtype, majors="kk", m=m, n=n, k=k), "cpu", 1)[0]


def right(x: inputs.InputSet) -> None:
    """Compute D in fp32 and round it."""
    x.out.copy_(x.a.float() @ x.b.float())


@pytest.mark.parametrize("dtype", list(inputs.DTYPES))
@pytest.mark.parametrize("size", [(70, 90, 130), (1, 1, 1), (1, 90, 5), (2, 3, 4096)])
def test_right_result_passes(dtype, size):
    """A rounded fp32 product passes in every type and shape, with an error above exactness in 16 bits."""
    error = correctness.check(right, one_set(dtype, *size))
    assert 0 <= error <= correctness.FROBENIUS_BOUND[inputs.DTYPES[dtype]]


@pytest.mark.parametrize("batch", [2, 40])
def test_every_product_of_a_batch_is_looked_at(batch):
    """A right batch passes; one whose last product is that of the first is refused."""
    case = Case(suite="batched", dtype="bf16", majors="kk", batch=batch, m=7, n=9, k=13)
    x = inputs.make_sets(case, "cpu", 1)[0]
    correctness.check(right, x)

    def repeated(x: inputs.InputSet) -> None:
        right(x)
        x.out[-1] = x.out[0]

    with pytest.raises(correctness.WrongResult, match="Frobenius error"):
        correctness.check(repeated, x)


def unwritten(x: inputs.InputSet) -> None:
    """Leaves one element of the poisoned D."""
    poison = x.out[33, 44].clone()
    right(x)
    x.out[33, 44] = poison


def last_row_lost(x: inputs.InputSet) -> None:
    """Writes zeros where the last row's result belongs."""
    right(x)
    x.out[-1] = 0


def last_column_shifted(x: inputs.InputSet) -> None:
    """Writes the neighbour's result to the last column."""
    right(x)
    x.out[:, -1] = x.out[:, -2]


def one_corner(x: inputs.InputSet) -> None:
    """Is wrong by half a root mean square in one element of a large row."""
    right(x)
    x.out[0, 0] += 0.5 * x.out.float().square().mean().sqrt()


def short_k(x: inputs.InputSet) -> None:
    """Leaves out the last step of K."""
    x.out.copy_(x.a[:, :-1].float() @ x.b[:-1].float())


def too_coarse(x: inputs.InputSet) -> None:
    """Computes from fp8 inputs."""
    x.out.copy_(x.a.to(torch.float8_e4m3fn).float() @ x.b.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize(
    ("call", "message"),
    [(unwritten, "1 of 6300 elements of D are not finite"), (last_row_lost, "Frobenius error"),
     (last_column_shifted, "Frobenius error"), (short_k, "Frobenius error"), (too_coarse, "Frobenius error")],
)  # fmt: skip
def test_wrong_result_is_caught(call, message):
    """Unwritten, lost, shifted, truncated and too coarse results are all refused."""
    with pytest.raises(correctness.WrongResult, match=message):
        correctness.check(call, one_set())


def test_one_element_is_caught_where_the_norm_hides_it():
    """In a row so long that one element vanishes in the norm, the element bound catches it."""
    with pytest.raises(correctness.WrongResult, match="an element of D errs by"):
        correctness.check(one_corner, one_set(m=16, n=4096, k=64))


@pytest.mark.parametrize("extent", [1, 2, 3, 16, 17, 5000])
def test_sample_has_both_ends_and_no_index_twice(extent):
    """Where tiles are cut off, at the ends, is always looked at."""
    indices = correctness._sample(extent, torch.device("cpu")).tolist()
    assert {0, extent - 1} <= set(indices) <= set(range(extent))
    assert len(indices) == len(set(indices)) == min(extent, 16)
