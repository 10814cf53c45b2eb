# SPDX-License-Identifier: Apache-2.0
"""Reading a Hopper tensor map (128 bytes) as the DSL's host code writes it.

The format is undocumented; the fields below were found by varying one argument at a time. Words 8 to 15
are not written.
"""

import struct
from dataclasses import dataclass

TYPES = {6: "fp16", 7: "fp32", 10: "bf16"}
SWIZZLES = ("none", "32B", "64B", "128B")


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map: extents and box in elements, innermost first; strides but the innermost, in bytes."""

    base: int
    dtype: str
    swizzle: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


def decode(raw: bytes) -> TensorMap:
    """The fields of a 128-byte tensor map."""
    w = struct.unpack("<8Q", raw[:64])
    rank = (w[1] >> 4 & 7) + 1
    low = (w[1] >> 32, w[2] & 0xFFFF_FFFF, w[2] >> 32, w[3] & 0xFFFF_FFFF)
    strides = tuple((low[i] | (w[3] >> (32 + 4 * i) & 15) << 32) * 16 for i in range(rank - 1))
    dims = (w[4] & 0xFFFF_FFFF, w[4] >> 32, w[5] & 0xFFFF_FFFF, w[5] >> 32, w[6] & 0xFFFF_FFFF)
    boxes = (w[6] >> 56 & 255, *(w[7] >> 8 * i & 255 for i in range(4)))
    return TensorMap(
        base=w[0],
        dtype=TYPES[w[1] >> 7 & 15],
        swizzle=SWIZZLES[w[1] >> 13 & 3],
        dims=tuple(d + 1 for d in dims[:rank]),
        strides=strides,
        box=tuple(b + 1 for b in boxes[:rank]),
    )
