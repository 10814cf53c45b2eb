# SPDX-License-Identifier: Apache-2.0
"""Kernel configs: exactly the parameters that are compiled into a kernel.

Two problems whose plans hold equal configs share one compiled kernel; shapes, strides, scalars and seeds
are run-time arguments. The config travels to compiler processes and into cache keys as plain data.
"""

from __future__ import annotations

from typing import Any

from cutegemm.config.draft import (
    L2_LINE,
    PARTIAL_ROWS,
    ROW_ALIGN,
    SECTOR,
    WIDEST_OF_FOUR,
    WORK_SLOTS,
    KernelDraft,
)
from cutegemm.config.gemv import GemvConfig, GemvTile
from cutegemm.config.helpers import FinishConfig, QuantizeConfig, RelayoutConfig, RowSumConfig
from cutegemm.config.kernel_config import KernelConfig
from cutegemm.config.parts import EpilogueConfig, MatrixConfig, OperandConfig, OutputConfig
from cutegemm.config.simt import SimtConfig, SimtTile
from cutegemm.families import FAMILIES, load

GemmConfig = KernelConfig | SimtConfig | GemvConfig
Config = GemmConfig | RelayoutConfig | FinishConfig | QuantizeConfig | RowSumConfig


def config_from_data(data: dict[str, Any]) -> Config:
    """Rebuild a config from its `to_data`."""
    kind = load(FAMILIES[data["family"]].config)
    config: Config = kind.from_data(data)
    return config


__all__ = [
    "PARTIAL_ROWS",
    "ROW_ALIGN",
    "L2_LINE",
    "SECTOR",
    "WIDEST_OF_FOUR",
    "WORK_SLOTS",
    "Config",
    "EpilogueConfig",
    "FinishConfig",
    "GemmConfig",
    "GemvConfig",
    "GemvTile",
    "KernelConfig",
    "KernelDraft",
    "MatrixConfig",
    "OperandConfig",
    "OutputConfig",
    "QuantizeConfig",
    "RelayoutConfig",
    "RowSumConfig",
    "SimtConfig",
    "SimtTile",
    "config_from_data",
]
