# SPDX-License-Identifier: Apache-2.0
"""What turns the `.cu` files of the folder above into stages: compiled, launched, checked, measured and reported.

source      the files: constants, headers, digest        problem    what is computed, and the limits of a stage
stage       what a stage is, and what can be asked of it registry   all of them, in order
toolkit     where NVRTC and the CUDA headers are         compiling  source -> CUBIN and PTX
resources   what a CUBIN costs                           plans      problem -> launches, as data
launch      plans -> the GPU                             verify     is a stage right
measure     how fast is it                               twins      the same in the builder's words
names       contenders that are no stages                report     tables for a terminal
plot        charts                                       worklog    README.md's figures and the headers'
options     the command line, checked                    session    checks and timings in progress, resumed
command     `python -m handwritten`
"""
