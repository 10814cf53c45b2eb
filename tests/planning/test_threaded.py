# SPDX-License-Identifier: Apache-2.0
"""Kernels whose threads load odd lines: predicted by what they shift, with K in parts where that is long."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H200
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.model import predicted_ns
from cutegemm.planning.planner import plan

# us of both operands shifted, by tile, parts of K and who adds them (H200)
SHIFTED = {
    (61, 3537, 12459): {
        (64, 64, 128, 2, "launch"): 61.2,
        (64, 64, 128, 8, "launch"): 67.4,
        (64, 64, 128, 4, "cluster"): 78.7,
        (64, 64, 128, 2, "cluster"): 78.9,
        (64, 64, 64, 8, "cluster"): 93.0,
        (64, 32, 128, 4, "cluster"): 122.1,
        (64, 32, 64, 8, "cluster"): 165.1,
        (64, 16, 128, 4, "cluster"): 221.2,
    },
    (107, 1889, 2037): {
        (64, 64, 128, 2, "launch"): 13.9,
        (64, 64, 128, 2, "cluster"): 15.1,
        (64, 64, 128, 4, "cluster"): 15.2,
        (64, 64, 128, 8, "launch"): 16.0,
        (64, 64, 64, 8, "cluster"): 19.0,
        (64, 32, 128, 4, "cluster"): 21.8,
        (64, 32, 64, 8, "cluster"): 31.2,
        (64, 16, 128, 4, "cluster"): 37.7,
    },
    (147, 683, 1187): {
        (64, 64, 128, 8, "launch"): 9.1,
        (64, 64, 128, 2, "launch"): 9.4,
        (64, 64, 128, 2, "cluster"): 9.8,
        (64, 64, 64, 8, "cluster"): 11.1,
        (64, 64, 128, 4, "cluster"): 11.2,
        (64, 32, 128, 4, "cluster"): 12.9,
        (64, 32, 64, 8, "cluster"): 15.2,
        (64, 16, 128, 4, "cluster"): 18.2,
    },
    (99, 119, 7045): {
        (64, 64, 128, 8, "launch"): 11.7,
        (64, 32, 64, 8, "cluster"): 12.9,
        (64, 64, 64, 8, "cluster"): 14.7,
        (64, 16, 128, 4, "cluster"): 17.6,
        (64, 32, 128, 4, "cluster"): 19.6,
        (64, 64, 128, 4, "cluster"): 24.2,
        (64, 64, 128, 2, "launch"): 38.4,
        (64, 64, 128, 2, "cluster"): 45.3,
    },
    (19, 1029, 7109): {
        (64, 64, 128, 8, "launch"): 20.0,
        (64, 64, 128, 4, "cluster"): 23.9,
        (64, 64, 64, 8, "cluster"): 27.2,
        (64, 32, 128, 4, "cluster"): 34.5,
        (64, 32, 64, 8, "cluster"): 35.6,
        (64, 64, 128, 2, "launch"): 37.9,
        (64, 64, 128, 2, "cluster"): 44.8,
        (64, 16, 128, 4, "cluster"): 45.7,
    },
}
# how far predictions may be off altogether, and by how much of that kernels of a product may differ
LEVEL = (0.75, 1.1)
SPREAD = 1.3


@pytest.mark.parametrize("shape", SHIFTED, ids=str)
def test_shifted_stages_are_predicted(shape):
    """Kernels that differ by up to four times in time are predicted alike, and the first of them is the fastest."""
    of, times = problem(*shape, majors="kk"), SHIFTED[shape]
    predicted = {}
    for m, n, depth, parts, how in times:
        held = parts if how == "cluster" else 1
        x = Candidate((m, n, depth), (1, 1), "cooperative", 1, parts, held, how)
        predicted[m, n, depth, parts, how] = predicted_ns(of, H200, x) / 1e3
    ratios = [times[x] / us for x, us in predicted.items()]
    assert LEVEL[0] <= min(ratios) and max(ratios) <= LEVEL[1] and max(ratios) <= SPREAD * min(ratios)
    assert times[min(predicted, key=predicted.__getitem__)] <= 1.01 * min(times.values())


@pytest.mark.parametrize(
    "shape,loads,parts",
    [
        ((99, 119, 7045), {"a": "shift", "b": "shift"}, 28),
        ((63, 19, 7343), {"a": "shift", "b": "shift"}, 58),
        ((19, 1029, 7109), {"a": "shift", "b": "shift"}, 7),
        ((61, 3537, 12459), {"a": "tma", "b": "shift"}, 2),
        ((69, 2437, 5955), {"a": "tma", "b": "shift"}, 4),
    ],
)
def test_parts_of_odd_lines_spread_their_loads(shape, loads, parts):
    """Of deep K a launch adds up parts on all SMs, whose threads shift what a copy would have to bring twice."""
    made = plan(GemmSpec(), problem(*shape, majors="kk"))
    operands = reversed(made.config.operands) if made.swapped else made.config.operands
    assert {name: x.load for name, x in zip("ab", operands, strict=True)} == loads
    assert made.config.splits == parts and made.steps[-1].name == "add parts"


def test_what_is_copied_is_read_as_a_copy():
    """A copy's kernel is predicted as that of aligned operands: threads load nothing."""
    made = plan(GemmSpec(), problem(1023, 1023, 1023, majors="kk"))
    aligned = plan(GemmSpec(), problem(1023, 1023, 1024, majors="kk"))
    assert made.steps[0].name == "relayout a and b"
    assert predicted_ns(aligned.problem, aligned.device, Candidate.of(made.config)) == pytest.approx(
        1e3 * made.why.taken.us, rel=0.01
    )


def test_columns_that_d_has_not_are_not_stored():
    """8191 x 33 x 2047 takes 16.0 us in 64 x 48, 18.2 in 64 x 64 (H200)."""
    assert plan(GemmSpec(), problem(8191, 33, 2047, majors="kk")).config.tile[:2] == (64, 48)
