# SPDX-License-Identifier: Apache-2.0
"""The torch op `cutegemm::gemm` and the functions that call it. Importing it imports torch and registers the op.

entry_points  `matmul`, `linear`, `bmm`; shortcuts: of their most common calls; fallback: the backend of a device
products      a function's arguments -> its program, and the path of the call
groups        `grouped_mm`, its op and gradients; routing: gathering and scattering of rows; row_sum: sums by index
program       the description of a call's computation, and its text form
layouts       leading dimensions, and outputs from extents alone; agreement: checks for all backends
dispatch      directly to the kernels, or through the dispatcher; serve: a call on real tensors
register      registers the op and its kernels with the dispatcher
gradients     the GEMMs of a gradient, and the autograd function that runs them
transforms    vmap, DTensor, FLOP counters
quantized     8-bit operands, quantized from tensors
perceptron    two linear layers whose gradients are computed in one launch
"""

from cutegemm.ops import register
from cutegemm.ops.entry_points import bmm, linear, matmul
from cutegemm.ops.groups.grouped import grouped_mm
from cutegemm.ops.quantized.quantize import dequantize, quantize

OVERLOADS = register.OVERLOADS

__all__ = ["OVERLOADS", "bmm", "dequantize", "grouped_mm", "linear", "matmul", "quantize"]
