# SPDX-License-Identifier: Apache-2.0
"""8-bit operands: quantized from tensors, and as arguments of the functions.

operands  kinds of the scales that a call passes
training  `linear` with fp8 GEMMs
frozen    a layer with a fixed 8-bit weight
quantize  `quantize` and `dequantize`
"""
