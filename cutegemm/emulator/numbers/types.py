# SPDX-License-Identifier: Apache-2.0
"""The types of what registers and lanes hold.

A register of a group of warps is one Python int where all lanes agree, else a vector with one element per lane, whose
element type follows from the register's width; hence no element type stands here.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

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

# A value whose uniformity is kept: an int gives an int, a vector a vector.
Same = TypeVar("Same", int, Vector)
