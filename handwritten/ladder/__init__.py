# SPDX-License-Identifier: Apache-2.0
"""Turns the `.cu` files of the parent folder into stages, and compiles, launches, checks, measures and reports them.

source      the files: constants, headers, digest        problem    a problem, and the limits of a stage
stage       a stage and its properties                   registry   all stages, in order
toolkit     finds NVRTC and the CUDA headers             compiling  source -> CUBIN and PTX
resources   registers, shared memory, occupancy          plans      problem -> launches, as data
launch      launches plans on the GPU                    verify     checks a stage
measure     times a stage                                twins      equivalent specs of cutegemm
names       contenders that are not stages               report     tables for a terminal
plot        charts                                       worklog    figures in README.md and the headers
options     the command line, checked                    session    checks and timings, saved and resumed
command     `python -m handwritten`
"""
