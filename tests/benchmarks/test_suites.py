# SPDX-License-Identifier: Apache-2.0
"""The suites are fixed: figures of different dates must be of the same problems."""

import pytest

from benchmarks import drawn, suites
from benchmarks.inputs import DTYPES


def test_sizes_per_suite():
    """Each suite has its number of problems and no problem twice."""
    counts = {name: len(suites.extents(name)) for name in suites.PRODUCTS}
    assert counts == {
        "square": 9,
        "prefill": 42,
        "decode": 35,
        "deep_k": 6,
        "odd": 9,
        "odd_skinny": 5,
        "small": 8,
        "fp32": 9,
        "sampled": 40,
        "drawn": 40,
        "drawn_odd": 40,
        "batched": 7,
    }
    assert all(len(set(suites.extents(name))) == count for name, count in counts.items())


@pytest.mark.parametrize("suite", suites.PRODUCTS)
def test_every_size_is_batch_m_n_k(suite):
    """Every problem is four positive extents, the batch 1 but in the batched suite."""
    found = suites.extents(suite)
    assert all(len(size) == 4 and min(size) > 0 for size in found)
    assert all((size[0] > 1) == (suite == "batched") for size in found)


def test_own_dtypes_exist():
    """A suite with an operand type of its own is a suite, and the type one that is drawn."""
    assert set(suites.DTYPES) <= set(suites.PRODUCTS) and set(suites.DTYPES.values()) <= set(DTYPES)


@pytest.mark.parametrize("layers", suites.CHAINS)
def test_layers_of_a_chain_fit_together(layers):
    """Each layer reads as many columns as the one before it wrote, the first those of the last."""
    for (n, _), (_, k) in zip(layers, (*layers[1:], layers[0]), strict=True):
        assert n == k


def test_drawn_problems_are_the_same_everywhere():
    """They follow from their seeds alone, keep their bounds, and are multiples of 8 or odd in every extent."""
    even, odd = (suites.SUITES[name] for name in suites.DRAWN)
    assert (even[0], even[-1]) == ((13584, 376, 1896), (920, 96, 760))
    assert (odd[0], odd[-1]) == ((2527, 7499, 2361), (157, 11811, 31))
    for shapes, legal in ((even, lambda x: x % 8 == 0), (odd, lambda x: x % 2 == 1)):
        for m, n, k in shapes:
            assert all(map(legal, (m, n, k))) and m <= 16384 and n <= 16384 and k <= 32768
            assert 2 * m * n * k >= 10_000_000 and 2 * (m * k + k * n + m * n) <= 4 << 30
    tuned = {shape for name, found in suites.SUITES.items() if name not in suites.DRAWN for shape in found}
    assert not tuned & {*even, *odd} and drawn.shapes(1, odd=False, count=3) != even[:3]
