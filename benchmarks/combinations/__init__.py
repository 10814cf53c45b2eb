# SPDX-License-Identifier: Apache-2.0
"""Tests every pair of values of a spec's and a problem's fields, on the emulator and on a GPU.

`fields`    the fields and their values
`factors`   the spec, problem and previous launch of a case
`group_factors`, `group_runs`  the same for grouped GEMMs
`cover`     a covering array from a seed, whose cases the planner accepts, and the pairs without a legal case
`runs`      runs a case on a backend and compares with fp64; `memory` allocates its tensors
`shrink`    reduces a failing case to the fewest fields
`farm`      runs many cases in watched worker processes

The command is `python -m benchmarks.combinations`; `tests/kernels/test_combinations.py` runs the same cases.
"""
