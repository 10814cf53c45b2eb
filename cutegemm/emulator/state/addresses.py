# SPDX-License-Identifier: Apache-2.0
"""How the emulator lays out addresses: windows of the generic space, offsets and ranks of shared memory."""

PARAM_WINDOW = 1 << 60  # generic addresses of the parameter space; real pointers use fewer than 57 bits
SHARED_WINDOW = 1 << 59
LOCAL_WINDOW = 1 << 58
SHARED_BASE = 0x400  # sm_90 reserves 1 KiB of shared memory for the system (CUDA programming guide, 16.8)
RANK_SHIFT = 24  # a shared address holds its CTA's rank in the cluster above the offset
