# SPDX-License-Identifier: Apache-2.0
"""What a running kernel holds: memory, groups of warps, lanes, progress."""
