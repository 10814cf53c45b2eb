# SPDX-License-Identifier: Apache-2.0
"""Invariants of a config: one text for a config and for many candidates at once, and no way around them."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from cutegemm.config import KernelConfig, config_from_data, memory, registers
from cutegemm.config.invariants import ALL, check, satisfied
from cutegemm.errors import PlanError
from tests.support.drafts import configs, drawn, stacked

CONFIGS = configs()
COUNT = 400


def holds(rule, draft) -> bool:
    """Whether an invariant holds of one draft; what divides by zero does not."""
    try:
        return bool(rule.holds(draft))
    except ZeroDivisionError:
        return False


@pytest.mark.parametrize("name", CONFIGS)
def test_arrays_say_what_numbers_say(name):
    """Every invariant, and the sums of shared memory and accumulators, of many drafts at once as of each alone."""
    drafts = drawn(CONFIGS[name], COUNT, seed=1)
    many = stacked(drafts)
    one_by_one = np.array([[holds(rule, x) for x in drafts] for rule in ALL])
    sound = np.logical_and.accumulate(one_by_one)
    with np.errstate(divide="ignore"):
        at_once = np.array([np.broadcast_to(rule.holds(many), COUNT) for rule in ALL])
    # a rule may say anything of what an earlier one refuses
    asked = np.vstack([np.ones((1, COUNT), bool), sound[:-1]])
    assert (at_once == one_by_one)[asked].all()
    assert (satisfied(many) == sound[-1]).all() and sound[-1].any()
    for figure in (memory.smem_bytes, memory.room, memory.stage_bytes, registers.accumulators,
                   registers.most_accumulators):  # fmt: skip
        with np.errstate(divide="ignore"):
            found = np.broadcast_to(figure(many), COUNT)
        for i in np.flatnonzero(sound[len(ALL) - 2]):
            assert found[i] == figure(drafts[i]), figure


@pytest.mark.parametrize("name", CONFIGS)
def test_what_breaks_an_invariant_cannot_be_made(name):
    """Neither from a draft, nor by replacing a field, nor from data; the refusal has field, value and rule."""
    refused = 0
    for draft in drawn(CONFIGS[name], COUNT, seed=2):
        fields = {f.name: getattr(draft, f.name) for f in dataclasses.fields(draft)}
        try:
            check(draft)
        except PlanError as error:
            refused += 1
            assert error.field and len(error.rule) > 5
            ways = (
                functools.partial(KernelConfig.of, draft),
                functools.partial(dataclasses.replace, CONFIGS[name], **fields),
                functools.partial(config_from_data, draft.to_data()),
            )
            for make in ways:
                with pytest.raises(PlanError) as again:
                    make()
                assert str(again.value) == str(error)
        else:
            assert KernelConfig.of(draft).draft == draft
    assert refused > COUNT // 4
