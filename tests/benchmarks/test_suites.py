# SPDX-License-Identifier: Apache-2.0
"""The suites are fixed: figures of different dates must be of the same problems."""

import pytest

from benchmarks import suites
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
