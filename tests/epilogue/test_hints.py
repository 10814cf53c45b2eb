# SPDX-License-Identifier: Apache-2.0
"""What an error of the epilogue language proposes instead of a name that it does not have."""

from functools import partial

import pytest

from cutegemm import epilogue as epi
from cutegemm.errors import SpecError


@pytest.mark.parametrize("name", ["sin", "tan", "log2", "exp2", "median"])
def test_where_nothing_is_near_nothing_is_guessed(name):
    """A function that the language does not have is not taken for one that is spelt alike."""
    with pytest.raises(SpecError) as e:
        getattr(epi, name)
    assert e.value.nearest is None and str(e.value) == f"epilogue='{name}': unknown operation"


def test_an_activation_of_another_name_is_known():
    """swish is silu, not hardswish, also where an activation is named by text."""
    with pytest.raises(SpecError) as e:
        epi.bias_act("swish")
    assert e.value.nearest == "silu"


@pytest.mark.parametrize(
    "body",
    [
        lambda h: epi.SumSquares(h) / 192,
        lambda h: 2 * epi.Max(h, axis=1),
        lambda h: -epi.Store(h),
        lambda h: abs(epi.Sum(h)),
        lambda h: epi.Output(d=h) + h,
        lambda h: epi.Sum(h) > 1,
    ],
    ids=["divided", "times", "negated", "abs", "output", "compared"],
)
def test_arithmetic_on_an_output_is_refused_by_name(body):
    """An output is known when the launch has ended: the error says where to compute with it."""
    with pytest.raises(
        SpecError, match=r"^epilogue='(Sum|Max|Store|Output)': an output cannot take part in a"
    ):
        epi.define(lambda acc: epi.Output(d=acc, o=body(acc)))


@pytest.mark.parametrize(("axis", "meant"), [(-1, 1), (-2, 0)])
def test_an_axis_may_count_from_the_end(axis, meant):
    """As of torch: the graph keeps the axis that is meant."""
    for kind in (epi.Sum, epi.Max, epi.LogSumExp, epi.AbsMax, epi.SumSquares):
        made, wanted = (epi.define(partial(_reduced, kind, x)) for x in (axis, meant))
        assert made == wanted and made.outputs[0].axis == meant


def _reduced(kind, axis, acc):
    return epi.Output(o=kind(acc, axis=axis))
