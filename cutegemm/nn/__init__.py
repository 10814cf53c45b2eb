# SPDX-License-Identifier: Apache-2.0
"""Modules that run on cutegemm, with the parameters and state dicts of the torch modules they replace.

linear       `Linear`
mlp          `MLP` and `SwiGLU`; their activations are epilogues
joined       layers that are called on the same tensor, as one GEMM
state_dicts  one parameter for several, in state dicts
conversion   `convert`: converts a model's layers; `asked` checks its arguments, `gated` recognizes SwiGLU MLPs,
             `perceptrons` MLPs of two layers
quantized    `QuantizedLinear`: 8-bit weights, quantized here or by other libraries
experts      `MoE`: mixtures of experts; `mixtures`: those of the transformers library
tracing      support for torch.fx
"""

from cutegemm.nn.conversion import Conversion, convert
from cutegemm.nn.experts import MoE
from cutegemm.nn.linear import Linear
from cutegemm.nn.mlp import MLP, SwiGLU
from cutegemm.nn.quantized import QuantizedLinear

__all__ = ["MLP", "Conversion", "Linear", "MoE", "QuantizedLinear", "SwiGLU", "convert"]
