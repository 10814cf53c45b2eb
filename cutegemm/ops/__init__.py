# SPDX-License-Identifier: Apache-2.0
"""The torch op `cutegemm::gemm`, and the functions that call it. Importing this registers the op; it imports torch.

entry_points  `matmul`, `linear`, `bmm`; shortcuts: of their commonest calls; fallback: which backend serves a device
products      a function's arguments -> its program, and the way of the call
groups        `grouped_mm`, its op and gradients; routing: rows to groups and back
program       what a call computes, and its form as text
layouts       leading dimensions, and outputs from extents alone; agreement: what every backend refuses
dispatch      straight to the kernels, or through the dispatcher; serve: a call on real tensors
register      the op and its kernels for the dispatcher
gradients     which GEMMs a gradient needs, and the autograd function that runs them
transforms    vmap, DTensor, FLOP counters
quantized     operands of 8 bits: made from tensors
perceptron    two linear layers whose gradients are computed in one launch
"""

from cutegemm.ops import register
from cutegemm.ops.entry_points import bmm, linear, matmul
from cutegemm.ops.groups.grouped import grouped_mm
from cutegemm.ops.quantized.quantize import dequantize, quantize

OVERLOADS = register.OVERLOADS

__all__ = ["OVERLOADS", "bmm", "dequantize", "grouped_mm", "linear", "matmul", "quantize"]
