# SPDX-License-Identifier: Apache-2.0
"""Which given fields take a choice of the planner's own away: one says too much for others to be weighed against it."""

from __future__ import annotations

from cutegemm.spec import AUTO, GemmSpec

# how D should be cut, or what has another meaning for its transpose
SHAPING = ("tile", "cluster", "consumers", "raster", "schedule")
# who takes works, and in which order
WALKING = ("scheduler", "sms", "ctas_per_sm")
# what fills the room that parts of K take, or cuts K itself
PARTING = ("tile", "cluster", "consumers", "schedule", "scheduler", "sms", "stages", "input_stages")
# what a way to load an operand leaves room for
LOADING = (*SHAPING, *WALKING, "split_k", "a_load", "b_load")


def gives(spec: GemmSpec, *names: str) -> bool:
    """Whether a spec gives one of some fields."""
    return any(getattr(spec, name) != AUTO for name in names)
