# SPDX-License-Identifier: Apache-2.0
"""How far a result may be from fp64's: far enough for what a kernel may do, and no farther where nothing is open."""

import numpy as np
import pytest
import torch

from cutegemm import Gemm, GemmSpec
from cutegemm import epilogue as epi
from cutegemm.emulator.numbers.tensor_core import Unit, accumulate
from cutegemm.epilogue.graph import linear_combination
from cutegemm.running.numerics.bounds import Bounded, _product, bound

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


@pytest.mark.parametrize(
    ("k", "dtype", "promote"),
    [(512, torch.bfloat16, 0), (544, torch.bfloat16, 256), (512, torch.float32, 256)],
    ids=str,
)
def test_bounds_without_a_config_are_those_of_the_planners_default(k, dtype, promote):
    """fp8 sums for bf16 are whole up to a K that the instruction has; other sums are promoted."""
    a, b = torch.full((2, k), 256.0), torch.full((k, 3), 0.125)
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    graph = epi.define(lambda acc: acc)
    told, same, other = (
        bound(graph, a, b, {}, {"d": dtype}, promote=x)["d"] for x in (None, promote, 512 if promote else 64)
    )
    assert torch.equal(told.low, same.low) and torch.equal(told.high, same.high)
    assert (told.high != other.high).all()


@pytest.mark.parametrize("k", [64, 128, 160, 192, 256, 320, 384, 512, 1024])
def test_whole_sums_of_one_sign_are_within_their_bound(k):
    """What the tensor cores truncate grows with the sum: of 256 positive products up to 0.4 %."""
    draw = torch.Generator().manual_seed(k)
    a, b = (torch.randn(256, k, generator=draw).abs().to(torch.float8_e4m3fn) for _ in "ab")
    factors = (x.float().numpy()[None] for x in (a, b))
    sums = torch.from_numpy(
        accumulate(*factors, np.zeros((1, 256, 256), np.float32), Unit("e4m3", "f32", 32))[0]
    )
    limits = bound(linear_combination(False), a, b.T, {"alpha": 1.0}, {"d": torch.float32}, promote=0)["d"]
    assert limits.complaint(sums) is None


def test_errors_of_both_factors_meet_in_a_product():
    """1 +- 1 times 1 +- 1 may be 4: the errors' own product is not left out."""
    one = Bounded(torch.ones(()), torch.ones(()))
    assert _product(one, one).error >= 3.0


def test_a_quotient_has_little_room_up_to_the_power_whose_reciprocal_is_flushed():
    """2**125 divides as any number does; what it may not be is 0."""
    graph = epi.define(lambda acc: 1.0 / acc)
    limits = bound(graph, torch.tensor([[2.0**125]]), torch.ones(1, 1), {}, {"d": torch.float32})["d"]
    assert limits.complaint(torch.tensor([[2.0**-125]])) is None
    assert limits.complaint(torch.zeros(1, 1)) is not None


@pytest.mark.parametrize("size", [1.0, 2.0**40], ids=["", "beyond int32"])
def test_scaled_sums_of_blocks_of_integers_have_room_for_their_roundings(size):
    """Each block's sum is rounded where it is multiplied by two scales and where it is added; no more than that.

    Scaled sums are fp32, so those beyond 32 bits do not saturate.
    """
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randint(0, 256, x, generator=draw).to(torch.uint8) for x in ((64, 512), (512, 48)))
    scale_a, scale_b = (torch.rand(x, 4, generator=draw) + 0.5 for x in (64, 48))
    scale_a *= size
    kind = ("block", 1, 128)
    spec = GemmSpec(scale_a=kind, scale_b=kind, d_dtype="fp32")
    graph = spec.epilogue
    found = torch.zeros(64, 48)
    for block in range(4):
        of = slice(128 * block, 128 * block + 128)
        total = (a[:, of].double() @ b[of].double()).float()
        found += total * scale_a[:, block, None] * scale_b[:, block]
    told = bound(graph, a, b, {"scale_a": scale_a, "scale_b": scale_b}, {"d": torch.float32})["d"]
    assert told.complaint(found) is None
    assert told.complaint(Gemm(spec).run(a, b, scale_a=scale_a, scale_b=scale_b)) is None
    assert told.complaint(found * (1 + 1e-6)) is not None
