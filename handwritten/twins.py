# SPDX-License-Identifier: Apache-2.0
"""The builder's side of the ladder: each Hopper stage as a `GemmSpec`, neighbours one idea apart.

A twin has its stage's tile, ring and way of storing; what differs is the language and the epilogue's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cutegemm.spec import GemmSpec, Tile
from handwritten.names import BUILDER, twin_name
from handwritten.registry import Stage

_SERIAL = {
    "schedule": "multistage",
    "stages": 1,
    "consumers": 1,
    "cluster": (1, 1),
    "scheduler": "per_tile",
    "store": "direct",
}
_RING = {
    "tile": Tile(128, 256, 64),
    "schedule": "cooperative",
    "stages": 4,
    "consumers": 2,
    "cluster": (1, 1),
    "scheduler": "per_tile",
    "store": "direct",
}
_FIELDS = {
    "16_wgmma_serial": _SERIAL | {"tile": Tile(64, 64, 64)},
    "17_wgmma_shapes_n64": _SERIAL | {"tile": Tile(128, 64, 64)},
    "17_wgmma_shapes_n128": _SERIAL | {"tile": Tile(128, 128, 64)},
    "18_producer_consumer": _RING,
    # A whole fp32 tile over the free ring is the stage's way; the builder keeps buffers of its own, so one
    # ring slot fewer.
    "19_staged_epilogue": _RING | {"store": "staged", "stages": 3},
    "20_persistent_cluster": _RING
    | {"store": "tma", "cluster": (2, 1), "scheduler": "persistent", "raster": ("m", 8)},
}


def twin(stage: Stage, dtype: str = "bf16") -> GemmSpec | None:
    """Return the stage's spec for 16-bit operands, or None for a stage that the builder has no form of."""
    fields = _FIELDS.get(stage.key)
    if fields is None or dtype not in stage.dtypes:
        return None
    return GemmSpec(a_dtype=dtype, b_dtype=dtype, c_dtype=dtype, d_dtype=dtype, **fields)


def builder_calls(
    stages: Iterable[Stage], dtype: str, shape: tuple[int, int, int], beta: float
) -> dict[str, Callable]:
    """Return what enqueues the builder's own choice and the stages' twins, by contender name.

    Raises:
        GemmError: the builder refuses the problem or a twin.
    """
    import cutegemm  # compiles with the DSL, which the stages do not need

    problem = cutegemm.problem(*shape, dtype=dtype, c_dtype=dtype if beta else None)
    specs = {BUILDER: GemmSpec()}
    specs |= {twin_name(stage.key): spec for stage in stages if (spec := twin(stage, dtype)) is not None}
    return {name: _call(cutegemm.build(spec, problem), beta) for name, spec in specs.items()}


def _call(gemm: Any, beta: float) -> Callable:
    def call(a: Any, b: Any, c: Any, out: Any) -> None:
        gemm.run(a, b, c if beta else None, beta=beta, out=out)

    return call
