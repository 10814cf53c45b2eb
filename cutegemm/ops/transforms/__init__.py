# SPDX-License-Identifier: Apache-2.0
"""The op under torch's transforms: vmap, DTensor, FLOP counters."""
