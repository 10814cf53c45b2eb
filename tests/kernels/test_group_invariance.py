# SPDX-License-Identifier: Apache-2.0
"""Under `batch_invariant` a row's bits do not depend on the other rows of its group or launch, nor on the kernel."""

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile
from tests.support.groups import drawn

K, N, GROUPS = 160, 72, 3
OWN = 37  # rows that are multiplied in every call
INVARIANT = {"batch_invariant": True}
# ends of the groups, the first of the own rows: alone, among few, behind many, in a launch of many tiles
LAUNCHES = {
    "alone": ([0, OWN, OWN], 0),
    "among few": ([5, 5 + OWN, 60], 5),
    "behind others of the group": ([0, 190, 190], 150),
    "in many tiles": ([130, 330, 400], 200),
}
SPECS = {
    "chosen": {},
    "short tiles": {"tile": Tile(64, 64, 64), "sms": 3},
    "deep tiles, tokens along columns": {"tile": Tile(16, 64, 128), "swap": True},
    "gathered": {"a_load": "gather"},
}


def weights():
    """A matrix for each group; partial sums that any other order of additions would round otherwise."""
    return drawn(GROUPS, K, N) * torch.logspace(0, 3, K)[:, None].bfloat16()


def bits(launch, fields):
    """The own rows of D in fp32."""
    ends, first = LAUNCHES[launch]
    a = drawn(ends[-1] + 3, K)
    a[first : first + OWN] = drawn(OWN, K)
    spec = GemmSpec(**INVARIANT, **fields)
    d = cutegemm.grouped_mm(
        a, weights(), torch.tensor(ends), out_dtype=torch.float32, spec=spec, fallback="emulator"
    )
    return d[first : first + OWN]


@pytest.fixture(scope="module")
def told():
    """The bits of a dense product of the same rows."""
    spec = GemmSpec(d_dtype="fp32", **INVARIANT)
    return cutegemm.matmul(drawn(OWN, K), weights()[1], spec=spec, fallback="emulator")


@pytest.mark.sliced
@pytest.mark.parametrize("launch", LAUNCHES)
def test_bits_do_not_depend_on_other_rows(launch, told):
    """The planner's choice for other numbers of rows is another kernel; the bits are a dense product's."""
    assert torch.equal(bits(launch, {}), told)


@pytest.mark.sliced
@pytest.mark.parametrize("name", SPECS)
def test_bits_do_not_depend_on_the_kernel(name, told):
    """Tiles, schedules, loads and swapped operands add in the same order."""
    assert torch.equal(bits("in many tiles", SPECS[name]), told)


def test_another_order_has_other_bits(told):
    """What the tests above would show: the same products added from the other end."""
    a, b = drawn(OWN, K).flip(1), weights()[1].flip(0)
    spec = GemmSpec(d_dtype="fp32", **INVARIANT)
    assert not torch.equal(cutegemm.matmul(a, b, spec=spec, fallback="emulator"), told)


def test_a_group_along_k_does_not_depend_on_others():
    """A weight's gradient: the group's rows alone, wherever they lie."""
    x, above = drawn(OWN, 40), drawn(OWN, 72)
    found = []
    for before, after in [(0, 0), (9, 100), (64, 1)]:
        a, b = (torch.cat([drawn(before, y.shape[1]), y, drawn(after, y.shape[1])]) for y in (x, above))
        ends = torch.tensor([before, before + OWN, before + OWN + after])
        d = cutegemm.grouped_mm(
            a.T, b, ends, out_dtype=torch.float32, spec=GemmSpec(**INVARIANT), fallback="emulator"
        )
        found.append(d[1])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
