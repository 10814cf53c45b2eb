# SPDX-License-Identifier: Apache-2.0
"""Configs of CUDA-core kernels."""

from cutegemm.config import (
    MatrixConfig,
    OperandConfig,
    OutputConfig,
    SimtConfig,
)
from cutegemm.dtypes import as_dtype
from cutegemm.epilogue import linear_combination


def simt(a="k", b="n", d="n", *, dtypes=("fp32", "fp32", None, "fp32"), tile=(128, 128, 8), vector=(4, 4, 4)):
    """A config from majors, dtypes of (A, B, C, D), tile and vector widths."""
    kinds = [None if x is None else as_dtype(x) for x in dtypes]
    return SimtConfig(
        operands=(
            OperandConfig(role="a", dtype=kinds[0], major=a),
            OperandConfig(role="b", dtype=kinds[1], major=b),
        ),
        inputs=() if kinds[2] is None else (MatrixConfig(dtype=kinds[2], major=d),),
        outputs=(OutputConfig(dtype=kinds[3], major=d),),
        tile=tile,
        staged=True,
        stages=2,
        vector=vector,
        epilogue=linear_combination(kinds[2] is not None),
    )
