# SPDX-License-Identifier: Apache-2.0
"""Modules that multiply with cutegemm, with the parameters and state dicts of the torch modules they replace.

linear       `Linear`
mlp          `MLP` and `SwiGLU`, whose activations are epilogues
joined       layers that are called on the same tensor, as one product
state_dicts  one tensor for several, in state dicts
conversion   `convert`: an existing model's layers; `asked` checks its arguments, `gated` recognises perceptrons
quantized    `QuantizedLinear`: weights of 8 bits, made here or by other libraries
experts      `MoE`: mixtures of experts; `mixtures`: those of transformers
tracing      torch.fx
"""

from cutegemm.nn.conversion import Conversion, convert
from cutegemm.nn.experts import MoE
from cutegemm.nn.linear import Linear
from cutegemm.nn.mlp import MLP, SwiGLU
from cutegemm.nn.quantized import QuantizedLinear

__all__ = ["MLP", "Conversion", "Linear", "MoE", "QuantizedLinear", "SwiGLU", "convert"]
