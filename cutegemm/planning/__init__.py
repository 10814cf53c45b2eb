# SPDX-License-Identifier: Apache-2.0
"""From a spec and a problem to a plan: pure Python, without torch, DSL or GPU.

the way in and out              `planner` (`plan`), `checks`, `request`, `representative`, `kernel_plan`
what costs least                `generator` (configs as arrays), `cost` (what they do, over a GPU's rates), `ranking`
what is tried, in which order   `setting`, `candidates` with `cuts`, `model`, `times` with `columns`, `left`, `power`,
                                `threaded`, `choose` with `listed`, `spread` and `prospects`, `swap`, `narrow` with
                                `boxes`, `whole`, `edges`, `given`, `invariance`
what follows from a candidate   `tensor_core`, `kernel`, `operands`, `loads`, `epilogue`, `pieces`, `budget`,
                                `parts`, `grid`, `serpentine`; what must hold: `config.invariants`
kernels on the CUDA cores       `simt`, `simt_tiles`, `simt_times`, `simt_vectors`
launches and their arguments    `steps`, `splits`, `adding`, `reductions`, `arguments`
for people                      `text`, `why`, `weighed`
"""
