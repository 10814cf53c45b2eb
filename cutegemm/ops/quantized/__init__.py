# SPDX-License-Identifier: Apache-2.0
"""8-bit operands: made from tensors, and as operands of the functions.

operands  kinds of the scales that a call passes
training  `linear` whose GEMMs multiply fp8
frozen    a layer whose weight is stored in 8 bits
quantize  `quantize` and `dequantize`
"""
