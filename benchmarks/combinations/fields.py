# SPDX-License-Identifier: Apache-2.0
"""The combined fields and their values. The first value of a field is its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.combinations.graphs import GRAPHS
from cutegemm.dtypes import DType
from cutegemm.epilogue.scales import K_BLOCK

AUTO = "auto"
Value = str | int | bool
Case = Mapping[str, Value]

# spec fields whose values are used as they are
PLAIN: dict[str, tuple[Value, ...]] = {
    "stages": (AUTO, 1, 2, 3, 5),
    "swizzle": (AUTO, "128B", "64B", "32B", "none"),
    "schedule": (AUTO, "cooperative", "pingpong", "multistage", "simt"),
    "consumers": (AUTO, 1, 2, 3),
    "a_load": (AUTO, "tma", "gather", "shift", "cp_async", "relayout"),
    "b_load": (AUTO, "tma", "gather", "shift", "cp_async", "relayout"),
    "store": (AUTO, "tma", "staged", "direct"),
    "epilogue_stages": (AUTO, 1, 2, 4),
    "input_stages": (AUTO, 1, 2, 4),
    "scheduler": (AUTO, "persistent", "per_tile", "stream_k", "dynamic"),
    "sms": (AUTO, 2, 1, 5),
    "swap": (AUTO, True, False),
    "split_k": (AUTO, 1, 2, 3, 4, 8),
    "split_reduction": (AUTO, "cluster", "workspace", "launch", "atomic"),
    "ctas_per_sm": (AUTO, 1, 2),
    "trigger": (AUTO, "never", "start", "loads", "mainloop"),
    "batch_invariant": (AUTO, True, False),
    "math": (AUTO, "tf32", "tf32x3"),
    "acc_dtype": (AUTO, "fp32", "int32"),
}
# spec fields whose values are parsed: "2x1x2" is a cluster, "m4" is ("m", 4), "a+b" is ("a", "b")
READ: dict[str, tuple[Value, ...]] = {
    "cluster": (AUTO, "1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "1x1x2", "1x1x4", "1x1x8", "2x1x2", "1x2x2"),
    "raster": (AUTO, "m1", "m4", "n1", "n3"),
    "constant": (AUTO, "a", "b", "a+b"),
    "evict_first": (AUTO, "none", "a", "b", "d", "a+b+d"),
    "promote": (AUTO, "never", 32, 64, 128, 256),
}
# extents of the CTA tile: all are specified, or none
EXTENTS: dict[str, tuple[Value, ...]] = {
    "tile_m": (AUTO, 16, 40, 64, 112, 128, 192, 256),
    "tile_n": (AUTO, 16, 48, 64, 128, 208, 256),
    "tile_k": (AUTO, 8, 16, 32, 64, 128),
}
LIES = ("aligned", "by_8", "by_4", "by_2", "odd", "stride_0", "strided")
_LINE, _SQUARE = ("block", 1, K_BLOCK), ("block", K_BLOCK, K_BLOCK)
# kinds of the scales of A and of B
SCALES: dict[str, tuple[Any, Any]] = {
    "none": (AUTO, AUTO),
    "tensor": ("tensor", "tensor"),
    "row": ("row", "row"),
    "block": (_LINE, _SQUARE),
    "blocks": (_LINE, _LINE),
    "tensor_row": ("tensor", "row"),
    "row_block": ("row", _LINE),
    "square_block": (_SQUARE, _LINE),
    "row_none": ("row", AUTO),
    "none_block": (AUTO, _LINE),
}
# fields of the problem
PROBLEM: dict[str, tuple[Value, ...]] = {
    "dtype": ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "fp8_mixed", "int8", "uint8"),
    "scales": tuple(SCALES),
    # the type of scales of blocks
    "scale_type": ("fp32", "ue8m0"),
    "zero_point_a": ("none", "tensor", "row"),
    "zero_point_b": ("none", "tensor", "row"),
    "d_dtype": ("as_a", *(x.value for x in DType)),
    # whether the spec specifies the types and majors of the problem
    "stated": (False, True),
    "a_major": ("k", "m"),
    "b_major": ("n", "k"),
    "d_major": ("n", "m"),
    "a_lies": LIES,
    "b_lies": LIES,
    "out": ("new", "given", "odd", "by_2", "strided", "in_place"),
    "c": ("none", "as_a", "odd", *(x.value for x in DType if not x.whole)),
    "epilogue": tuple(GRAPHS),
    "inputs": ("as_a", "fp32", "odd", "strided", "other_major"),
    "numbers": ("host", "device"),
    "batch": ("one", "two", "a_shared", "b_shared"),
    "shape": ("tile", "ragged", "waves", "few_rows", "one"),
    "depth": ("few", "one_stage", "odd", "deep", "zero"),
    # tensor that the previous launch writes
    "before": ("nothing", "a", "b", "input", "scalar", "out", "itself"),
}
FACTORS: dict[str, tuple[Value, ...]] = {**EXTENTS, **PLAIN, **READ, **PROBLEM}
# extents of a random problem, which replace "shape" and "depth"
FREE = ("m", "n", "k")
NOMINAL = (64, 64, 64)
# extent of a tile from which one full and one partial tile suffice
LARGE = 128
EIGHTS = ("fp8_e4m3", "fp8_e5m2", "fp8_mixed", "int8", "uint8")
POINTS = ("zero_point_a", "zero_point_b")
# value of a zero point per tensor
POINT = 3
# those with scales of blocks
WITH_BLOCKS = tuple(name for name, kinds in SCALES.items() if {_LINE, _SQUARE} & set(kinds))
