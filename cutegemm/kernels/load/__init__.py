# SPDX-License-Identifier: Apache-2.0
"""How an operand's tile reaches a stage of shared memory: TMA, cp.async, the producer's threads."""
