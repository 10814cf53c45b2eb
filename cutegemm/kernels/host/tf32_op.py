# SPDX-License-Identifier: Apache-2.0
"""wgmma of tf32, which the DSL's dialect knows and its Python package lacks.

Operands lie in shared memory as fp32, K-major. The tensor core reads sign, exponent and 10 fraction bits of each
element; the low 13 bits are ignored (PTX ISA 9.0, 5.2.3 and 9.7.16).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Boolean
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.atom import make_atom
from cutlass.cute.core import _pack_shape
from cutlass.cute.nvgpu.warpgroup import mma


class MmaTf32Trait(mma.MmaTraits):
    """The atom with its flag, which says whether accumulators are added to."""


@dataclass(frozen=True)
class MmaTf32Op(mma.MmaOp):
    """m64 x n x k8 of TFloat32 operands, added in fp32; arguments as of the DSL's `MmaF8Op`."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _make_trait(self, *, loc: Any = None, ip: Any = None, **_: Any) -> MmaTf32Trait:
        shape = _pack_shape(self.shape_mnk, loc=loc, ip=ip)
        kind = cute_nvgpu.MmaAtomSM90Type.get(
            shape.type.attribute,
            self.a_major_mode._to_ir(),
            self.b_major_mode._to_ir(),
            self.a_dtype.mlir_type,
            self.b_dtype.mlir_type,
            self.acc_dtype.mlir_type,
            self.a_src._to_ir(),
        )
        adds = Boolean(False).ir_value(loc=loc, ip=ip)
        return MmaTf32Trait(make_atom(kind, [adds], loc=loc, ip=ip))
