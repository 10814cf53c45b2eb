# SPDX-License-Identifier: Apache-2.0
"""Types of register values; see `values.py`."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[Any]  # one element per lane: uint16, uint32, uint64 or bool
Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Chunks: TypeAlias = npt.NDArray[np.int64]  # numbers of 16-byte chunks of shared memory
Value: TypeAlias = int | Vector  # of a register: a pattern, or a bool for a predicate
Mask: TypeAlias = npt.NDArray[np.bool_] | None  # active lanes, None for all of them
Real: TypeAlias = np.floating[Any] | npt.NDArray[Any]  # a floating-point reading of a value
Kind: TypeAlias = type[np.unsignedinteger[Any]] | type[np.bool_]  # of a register's elements
