# SPDX-License-Identifier: Apache-2.0
"""The layout algebra in plain Python: no GPU, no tensors, no compiler.

Read in this order: `int_tuple` (nested tuples), `layout` (shape:stride as a function), `swizzle`, `algebra`
(composition, complement, inverses), `tiling` (divides and products), `hardware` (the layouts of WGMMA, TMA and
stmatrix), `banks` (shared-memory bank conflicts), `draw` (pictures of bank usage).
"""

from cutegemm.layouts.algebra import coalesce, complement, composition, left_inverse, right_inverse
from cutegemm.layouts.layout import Layout, make_layout, ordered_layout, row_major, slice_
from cutegemm.layouts.swizzle import ComposedLayout, Swizzle, parse
from cutegemm.layouts.tiling import (
    blocked_product,
    flat_divide,
    logical_divide,
    logical_product,
    raked_product,
    tile_to_shape,
    tiled_divide,
    zipped_divide,
)

__all__ = [
    "ComposedLayout",
    "Layout",
    "Swizzle",
    "blocked_product",
    "coalesce",
    "complement",
    "composition",
    "flat_divide",
    "left_inverse",
    "logical_divide",
    "logical_product",
    "make_layout",
    "ordered_layout",
    "parse",
    "raked_product",
    "right_inverse",
    "row_major",
    "slice_",
    "tile_to_shape",
    "tiled_divide",
    "zipped_divide",
]
