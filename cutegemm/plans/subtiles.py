# SPDX-License-Identifier: Apache-2.0
"""Subtiles of a tensor-core kernel's epilogue, and slices of whole subtiles."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from cutegemm.config import KernelDraft, MatrixConfig, OutputConfig
from cutegemm.config.numbers import Number
from cutegemm.request.operand_rules import subtile

# a draft or a config, and the same returned
Kernel = TypeVar("Kernel", bound=KernelDraft)


def subtile_columns(
    columns: Number, outputs: tuple[OutputConfig, ...], inputs: tuple[MatrixConfig, ...]
) -> Number:
    """EPI_N: columns of the widest subtile that divides a tile's, by the widest element that shared memory holds."""
    widths = [x.dtype.bytes for x in outputs] + [x.dtype.bytes for x in inputs if x.load == "tma"]
    return subtile(columns, max(widths, default=2))


def sliced(config: Kernel, most: int, enough: bool = False) -> Kernel:
    """The config with its tile's columns divided into the most slices of whole subtiles, at most so many.

    If `enough`, into the next larger number where that is at most half of so many.
    """
    columns, step = config.columns, config.columns_step
    legal = [x for x in range(1, columns // step + 1) if columns % (step * x) == 0]
    slices = max((x for x in legal if x <= most), default=1)
    if enough and 2 * slices <= most:
        slices = min((x for x in legal if x > most), default=slices)
    epi_n = subtile_columns(columns // slices, config.outputs, config.inputs)
    return dataclasses.replace(config, slices=slices, epi_n=epi_n)
