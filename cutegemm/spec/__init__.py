# SPDX-License-Identifier: Apache-2.0
"""`GemmSpec`, the declaration of a kernel, and the legal values of its fields."""

from cutegemm.config.draft import MAX_STAGES
from cutegemm.spec.gemm_spec import GemmSpec, checked_spec
from cutegemm.spec.rules import tile_fault
from cutegemm.spec.values import (
    AUTO,
    LOADS,
    MAX_SPLITS,
    PINGPONG_CONSUMERS,
    SCHEDULERS,
    SCHEDULES,
    SPLIT_REDUCTIONS,
    STORES,
    SWIZZLES,
    TENSOR_CORE_FIELDS,
    TILE_N_STEP,
    Tile,
)

__all__ = [
    "AUTO", "LOADS", "MAX_SPLITS", "MAX_STAGES", "PINGPONG_CONSUMERS", "SCHEDULERS", "SCHEDULES", "SPLIT_REDUCTIONS",
    "STORES", "SWIZZLES", "TENSOR_CORE_FIELDS", "TILE_N_STEP", "GemmSpec", "Tile", "checked_spec", "tile_fault",
]  # fmt: skip
