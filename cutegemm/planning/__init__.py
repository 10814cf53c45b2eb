# SPDX-License-Identifier: Apache-2.0
"""Which kernel a problem gets: from a spec and a problem (`request`) to a plan (`plans`), without torch, DSL or GPU.

the way in                      `planner` (`plan`)
what costs least                `ways` (swapped or not, how operands arrive), `generator` (configs as arrays),
                                `cost` (what they do for the GEMM in `seen`, over a GPU's rates), `known_kernels`,
                                `ranking`, `choose`
what follows from a candidate   `candidates`, `kernel_fields`, `epilogue_plan`, `invariance`;
                                what must hold: `config.invariants`
kernels on the CUDA cores       `simt_tiles`; of few rows or columns of D `gemv_tiles`
several GEMMs in one launch     `grouped`, `group_kernels`
for people                      `why`

A refusal is a `PlanError` (`errors.field_error`): checks raise it, and so does whatever honours a given field.
"""
