# SPDX-License-Identifier: Apache-2.0
"""8-bit operands: made from tensors, and as operands of the functions.

operands  kinds of the scales that a call passes
quantize  `quantize` and `dequantize`
"""
