# SPDX-License-Identifier: Apache-2.0
"""The torch op `cutegemm::gemm`, and the functions that call it. Importing this registers the op; it imports torch.

program     what a call computes, and its form as text
layouts     leading dimensions, and outputs from extents alone
serve       a call on real tensors
ways        straight to the kernels, or through the dispatcher
gradient    what a program's gradient computes; autograd: the function that computes it
saved       what a backward reads; once: gradients that refuse to be differentiated; grad_batches: many at once
batching    vmap; flops: what it costs; register: the dispatcher's kernels
perceptron  two linear layers whose gradients meet in one launch
functions   matmul, linear, bmm; shortcuts: of their commonest calls; fallback: who serves a device
sharding    rules for DTensor
"""

from cutegemm.ops import register
from cutegemm.ops.functions import bmm, linear, matmul

OVERLOADS = register.OVERLOADS

__all__ = ["OVERLOADS", "bmm", "linear", "matmul"]
