# SPDX-License-Identifier: Apache-2.0
"""Invariants of CUDA-core configs: of one config and of arrays of them, and no way around them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random

import numpy as np
import pytest

from cutegemm.config import SimtConfig, config_from_data
from cutegemm.config.simt import TILES
from cutegemm.config.simt_invariants import RULES, check, smem_bytes
from cutegemm.errors import PlanError
from tests.support.simt_configs import simt

COUNT = 500
SCALARS = {
    "lanes_m": (2, 4, 8, 16, 5),
    "staged": (True, False),
    "stages": (1, 2, 3, 6, 60),
    "slices": (1, 2, 4, 8, 3),
    "split": (1, 2, 8, 3, 16),
    "ahead": (0, 1, 4),
    "residents": (1, 2, 8),
}
TUPLES = {
    "tile": ((128, 64, 96, 16), (128, 64, 100), (8, 16, 32, 12)),
    "thread_tile": ((8, 4, 14, 6), (8, 4, 16)),
    "vector": ((1, 4, 2, 8), (1, 4), (1, 4, 2)),
}


def drawn(seed: int) -> list[SimtConfig]:
    """Configs of the planner's tiles with a few other numbers, unchecked."""
    source, found = random.Random(seed), []
    for _ in range(COUNT):
        fields = dataclasses.asdict(source.choice(TILES)) | {"vector": (4, 4, 4)}
        for name, values in SCALARS.items():
            if source.random() < 0.12:
                fields[name] = source.choice(values)
        for name, values in TUPLES.items():
            if source.random() < 0.2:
                fields[name] = tuple(source.choice(x) for x in values)
        made = copy.copy(simt())
        made.__dict__.update(fields)
        found.append(made)
    return found


def stacked(configs: list[SimtConfig]) -> SimtConfig:
    """The same as one, whose numbers are arrays."""
    many = copy.copy(configs[0])
    for name in SCALARS:
        many.__dict__[name] = np.array([getattr(x, name) for x in configs])
    for name, values in TUPLES.items():
        many.__dict__[name] = tuple(
            np.array([getattr(x, name)[i] for x in configs]) for i in range(len(values))
        )
    return many


def test_arrays_say_what_numbers_say():
    """Every invariant, and shared memory, of many configs at once as of each alone."""
    configs = drawn(1)
    many, sound = stacked(configs), np.ones(COUNT, bool)
    with np.errstate(divide="ignore"):
        for rule in RULES:
            at_once = np.broadcast_to(rule.holds(many), COUNT)
            for i in np.flatnonzero(sound):
                assert bool(rule.holds(configs[i])) == at_once[i]
            sound = sound & at_once
        sizes = smem_bytes(many)
    assert 20 < sound.sum() < COUNT - 20
    assert all(sizes[i] == smem_bytes(configs[i]) for i in np.flatnonzero(sound))


def test_what_breaks_an_invariant_cannot_be_made():
    """Neither by replacing a field nor from data; the refusal has field, value and rule."""
    for config in drawn(2):
        try:
            check(config)
        except PlanError as error:
            assert error.field and len(error.rule) > 5
            fields = {name: getattr(config, name) for name in (*SCALARS, *TUPLES)}
            with pytest.raises(PlanError):
                dataclasses.replace(simt(), **fields)
            with pytest.raises(PlanError):
                config_from_data(config.to_data())
        else:
            assert config_from_data(config.to_data()) == config


def test_a_nearest_value_is_not_refused_for_the_same_reason():
    """Whatever a refusal names, the config with it is legal or breaks another invariant."""
    named = 0
    for config in drawn(3):
        with contextlib.suppress(PlanError):
            check(config)
            continue
        fields = {name: getattr(config, name) for name in (*SCALARS, *TUPLES)}
        with pytest.raises(PlanError) as e:
            dataclasses.replace(simt(), **fields)
        first = e.value
        assert first.value == getattr(config, "split" if first.field == "split_k" else first.field)
        if first.nearest is not None:
            named += 1
            changed = {"split" if first.field == "split_k" else first.field: first.nearest}
            with contextlib.suppress(PlanError):
                dataclasses.replace(simt(), **fields | changed)
                continue
            with pytest.raises(PlanError) as e:
                dataclasses.replace(simt(), **fields | changed)
            assert (e.value.field, e.value.rule) != (first.field, first.rule)
    assert named > 50


STAGED = {"staged": True, "stages": 2, "split": 1}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        # 10 spare elements between lines of vectors, after which no vector of four is aligned
        (
            {"tile": (96, 64, 12), "thread_tile": (16, 4), "lanes_m": 2, "vector": (4, 4, 1)},
            "vector=(4, 4, 1): 96 threads cannot share a 96 x 12 tile in vectors of 4; "
            "nearest legal value: (1, 4, 1)",
        ),
        # slices of two lines, which begin in the middle of a vector
        (
            {
                "tile": (256, 16, 8),
                "thread_tile": (16, 8),
                "lanes_m": 16,
                "slices": 4,
                "vector": (4, 1, 1),
            },
            "vector=(4, 1, 1): 128 threads cannot share a 256 x 8 tile in vectors of 4; "
            "nearest legal value: (2, 1, 1)",
        ),
    ],
)
def test_lines_of_a_staged_tile_are_aligned_and_slices_are_whole_vectors(fields, said):
    """One did not compile, and the other read shared memory that nothing had written."""
    with pytest.raises(PlanError) as e:
        dataclasses.replace(simt(), **STAGED | fields)
    assert str(e.value) == said


def test_a_config_of_another_family_is_refused():
    """The family names the driver that reads the config."""
    with pytest.raises(PlanError, match="^family='multistage': .*'simt'$"):
        dataclasses.replace(simt(), family="multistage")
    with pytest.raises(PlanError, match="^staged=False: .*nearest legal value: True$"):
        dataclasses.replace(simt(dtypes=("bf16", "bf16", None, "bf16"), vector=(1, 1, 1)), staged=False)
