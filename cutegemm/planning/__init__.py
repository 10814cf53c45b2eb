# SPDX-License-Identifier: Apache-2.0
"""From a spec and a problem to a plan: pure Python, without torch, DSL or GPU.

the way in and out              `planner` (`plan`), `requirements` (and the `Request` they make), `kernel_plan`
what costs least                `ways` (swapped or not, how operands arrive), `generator` (configs as arrays),
                                `cost` (what they do for the GEMM in `seen`, over a GPU's rates), `known_kernels`,
                                `ranking`, `choose`
what follows from a candidate   `candidates`, `kernel_fields`, `operand_rules`, `epilogue_plan`,
                                `launches`, `steps`, `swap`, `invariance`; what must hold: `config.invariants`
kernels on the CUDA cores       `simt_tiles`
several GEMMs in one launch     `grouped`, `group_forms`
for people                      `plan_text`, `why`

A refusal is a `PlanError` (`errors.field_error`): checks raise it, and so does whatever honours a given field.
"""
