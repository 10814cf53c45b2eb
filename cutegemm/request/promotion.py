# SPDX-License-Identifier: Apache-2.0
"""How often partial sums of the tensor cores are promoted: added to accumulators in fp32 registers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cutegemm.arch.instructions import Instruction
from cutegemm.config.parts import OutputConfig
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.spec import AUTO, GemmSpec

# types of outputs with at most eight significant bits
COARSE = frozenset({DType.BF16, DType.FP8_E4M3, DType.FP8_E5M2})


def promotion(
    spec: GemmSpec, multiply: Instruction, outputs: Sequence[OutputConfig], epilogue: Graph, k: int | None
) -> int:
    """Elements of K between promotions: as given, or as instruction, scales, outputs and K need; 0 is never.

    Args:
        k: of the whole problem, also if it is split; None if only the device knows it.
    """
    if epilogue.scales:
        return K_BLOCK
    if spec.promote != AUTO:
        return int(spec.promote or 0)
    if not multiply.promote or not rounds_coarsely(epilogue, (x.dtype for x in outputs)):
        return multiply.promote
    return coarse_promotion(multiply, k)


def rounds_coarsely(epilogue: Graph, dtypes: Iterable[DType]) -> bool:
    """Whether every output is rounded to so few bits that long unpromoted sums do no harm; reductions are not."""
    return not epilogue.reductions and COARSE.issuperset(dtypes)


def coarse_promotion(multiply: Instruction, k: int | None) -> int:
    """Elements of K between promotions where outputs are rounded coarsely; 0 is never. `k` is as for `promotion`."""
    return 0 if k is not None and k <= multiply.whole else multiply.coarse
