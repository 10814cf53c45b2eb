# SPDX-License-Identifier: Apache-2.0
"""The suites are fixed: figures of different dates must be of the same problems."""

from benchmarks.suites import SUITES


def test_sizes_per_suite():
    """Each suite has its number of problems and no problem twice."""
    assert {name: len(sizes) for name, sizes in SUITES.items()} == {
        "square": 9, "prefill": 42, "decode": 35, "deep_k": 6, "odd": 9, "small": 8,
    }  # fmt: skip
    assert all(len(set(sizes)) == len(sizes) for sizes in SUITES.values())


def test_every_size_is_m_n_k():
    """Every problem is three positive extents."""
    assert all(len(s) == 3 and min(s) > 0 for sizes in SUITES.values() for s in sizes)
