# SPDX-License-Identifier: Apache-2.0
"""Mutation testing of kernels, the planner, its requests and plans, and the run path on a seeded sample.

`changes`   the mutants of a module, and the sample
`calls`     a pytest plugin that records the functions called by a test file
`watch`     a pytest plugin that writes each test's outcome to a file at once
`judge`     runs the tests of one mutant in a copy of the tree
The command is `python -m benchmarks.mutants`.
"""
