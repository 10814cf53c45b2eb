# SPDX-License-Identifier: Apache-2.0
"""Every pair of values of a spec's and a problem's fields, on the emulator and on a GPU.

`fields`    the fields and their values
`factors`   what a case declares: a spec, a problem, the launch before
`group_factors`, `group_runs`  the same of launches that compute groups
`cover`     a covering array from a seed, legal by asking the planner, and the pairs that no legal spec has
`runs`      a case on a backend, compared with fp64; `memory` is what its tensors lie in
`shrink`    the fewest fields that still fail
`farm`      many cases in watched worker processes

The command is `python -m benchmarks.combinations`; `tests/kernels/test_combinations.py` runs the same cases.
"""
