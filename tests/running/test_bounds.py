# SPDX-License-Identifier: Apache-2.0
"""How far a result may be from fp64's: far enough for what a kernel may do, and no farther where nothing is open."""

import pytest
import torch

from cutegemm import epilogue as epi
from cutegemm.running.numerics.bounds import bound

# accumulators: one that a kernel may find on either side of 0, and two that it may not
A, B = torch.tensor([[1.0, 1.0], [3.0, 0.0], [-3.0, 0.0]]), torch.tensor([[1.0], [-1.0]])


@pytest.mark.parametrize(("greater", "values"), [(True, [0.0, 1.0, 0.0]), (False, [1.0, 0.0, 1.0])])
def test_a_comparison_is_open_only_between_what_may_be_equal(greater, values):
    """The other branch is allowed there and wrong elsewhere."""
    graph = epi.define(lambda acc: epi.where(acc > 0.0 if greater else acc <= 0.0, 1.0, 0.0))
    limits = bound(graph, A, B, {}, {"d": torch.float32})["d"]
    right = torch.tensor(values)[:, None]
    assert limits.complaint(right) is None
    assert limits.wrong(1 - right).flatten().tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "sigmoid", "erf"])
def test_a_function_has_little_room(name):
    """What torch gives in fp32 is within the bound; what is off by a hundredth is not."""
    graph = epi.define(lambda acc: getattr(epi, name)(acc))
    a = torch.linspace(0.5, 3.0, 20)[:, None]
    limits = bound(graph, a, torch.ones(1, 1), {}, {"d": torch.float32})["d"]
    function = getattr(torch, name)
    assert limits.complaint(function(a)) is None
    assert (limits.wrong(1.01 * function(a)) | (function(a).abs() < 0.01)).all()
