# SPDX-License-Identifier: Apache-2.0
"""What single kernels take over what the rates say: only theirs changes, and by as much as the record has."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H200, RECORDS
from cutegemm.planning import ranking, ways
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.known_kernels import known, name
from cutegemm.request.requirements import requested

ONE = Candidate((128, 128, 64), (2, 1), "cooperative", 2)
OTHERS = (
    ONE,
    ONE._replace(cluster=(1, 2)),
    ONE._replace(schedule="pingpong"),
    ONE._replace(tile=(128, 136, 64)),
    ONE._replace(splits=2, reduction="launch"),
    ONE._replace(splits=3, reduction="launch"),
)


def predicted(of, kernels):
    """Nanoseconds of the candidates on a GPU of which no kernel but these is known."""
    device = dataclasses.replace(H200, name=f"H200 of {sorted(kernels)}", kernels=kernels)
    way = next(ways.ways_of(requested(GemmSpec(), of, device)[0]))
    return np.array(ranking.predicted(way, OTHERS))


@pytest.mark.parametrize(("slow", "changed"), [(0, [0]), (1, [1]), (2, [2]), (3, [3]), (4, [4, 5])])
def test_a_known_kernel_takes_its_factor(slow, changed):
    """Those of one kernel, whatever its number of splits, and no others."""
    of = problem(512, 2048, 4096)
    ratios = predicted(of, {name(OTHERS[slow]): 1.25}) / predicted(of, {})
    assert ratios == pytest.approx([1.25 if i in changed else 1.0 for i in range(len(OTHERS))])


@pytest.mark.parametrize(
    "of", [problem(512, 2048, 4096, dtype="fp8_e4m3"), problem(511, 2047, 4095)], ids=str
)
def test_other_kernels_of_the_same_tile_are_not_known(of):
    """Those of another operand type, and those whose threads load."""
    slow = {name(x): 2.0 for x in OTHERS}
    device = dataclasses.replace(H200, name="slow", kernels=slow)
    spec = GemmSpec() if of.a.tma_reason() is None else GemmSpec(a_load="gather", b_load="gather")
    found = []
    for gpu in (device, dataclasses.replace(H200, name="even", kernels={})):
        way = next(ways.ways_of(requested(spec, of, gpu)[0]))
        found.append(ranking.predicted(way, [ONE]))
    assert found[0] == found[1]


def test_a_kernel_that_reads_vectors_has_its_own_factor_or_that_of_the_kernel_without():
    """With scales of rows; scales of tensors have the other's only."""
    one = Candidate((128, 128, 128), (2, 1), "cooperative", 2)
    found = {}
    for scale, kernels in itertools.product(
        ("tensor", "row"), ({}, {"promoted": 1.5}, {"promoted": 1.5, "promoted_vectors": 1.25})
    ):
        known = {name(one, kind): factor for kind, factor in kernels.items()}
        device = dataclasses.replace(H200, name=str(known), kernels=known)
        spec = GemmSpec(scale_a=scale, scale_b=scale, d_dtype="bf16")
        of = problem(512, 2048, 4096, dtype="fp8_e4m3", epilogue=spec.epilogue, d_dtype="bf16")
        way = next(ways.ways_of(requested(spec, of, device)[0]))
        found[scale, len(known)] = ranking.predicted(way, [one])[0]
    assert [found["tensor", x] / found["tensor", 0] for x in (1, 2)] == pytest.approx([1.5, 1.5])
    assert [found["row", x] / found["row", 0] for x in (1, 2)] == pytest.approx([1.5, 1.25])


@pytest.mark.parametrize("device", RECORDS, ids=lambda x: x.name)
def test_records_know_kernels_within_bounds(device):
    """Each has its own number, and no factor is far from one."""
    numbers, factors = known(device)
    assert len(device.kernels) > 500 and len(set(numbers.tolist())) == len(device.kernels) + 1
    assert 0.8 < factors.min() <= factors.max() < 1.25
