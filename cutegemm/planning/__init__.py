# SPDX-License-Identifier: Apache-2.0
"""From a spec and a problem to a plan: pure Python, without torch, DSL or GPU.

the way in and out              `planner` (`plan`), `checks`, `request`, `representative`, `kernel_plan`
what costs least                `ways` (swapped or not, how operands arrive: `loads`, `setting`), `generator` (configs
                                as arrays), `cost` (what they do, over a GPU's rates), `ranking`, `choose`, `prospects`
what follows from a candidate   `candidates`, `tensor_core`, `kernel`, `operands`, `epilogue`, `pieces`, `budget`,
                                `boxes`, `parts`, `grid`, `model` (the raster), `serpentine`, `swap`, `invariance`; what
                                must hold: `config.invariants`
kernels on the CUDA cores       `simt`, `simt_tiles`, `simt_times`, `simt_vectors`
launches and their arguments    `steps`, `splits`, `adding`, `reductions`, `arguments`
for people                      `text`, `why`, `weighed`
"""
