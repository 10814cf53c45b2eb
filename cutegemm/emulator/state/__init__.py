# SPDX-License-Identifier: Apache-2.0
"""State of a running kernel: memory, CTAs and their barriers, groups of warps, pending operations."""
