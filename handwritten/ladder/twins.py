# SPDX-License-Identifier: Apache-2.0
"""The Hopper stages as `GemmSpec`s (twins); consecutive specs differ in one field.

A twin has its stage's tile, pipeline, raster and store; language and epilogue code differ. Between two twins there are
specs without a stage, so every field is measured separately.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cutegemm.spec import GemmSpec, Tile
from handwritten.ladder.names import BUILDER, knob_name, twin_name
from handwritten.ladder.registry import HALVES
from handwritten.ladder.stage import Stage

if TYPE_CHECKING:
    import torch

    import cutegemm
    from handwritten.ladder.measure import Call

_FIRST: dict[str, Any] = {
    "tile": Tile(64, 64, 64),
    "schedule": "multistage",
    "stages": 1,
    "consumers": 1,
    "cluster": (1, 1),
    "scheduler": "per_tile",
    "raster": ("m", 8),
    "store": "direct",
}
# (stage whose twin this is or None, the field that changes, its value)
_STEPS: tuple[tuple[str | None, str, Any], ...] = (
    ("17_wgmma_shapes_n64", "tile", Tile(128, 64, 64)),
    ("17_wgmma_shapes_n128", "tile", Tile(128, 128, 64)),
    (None, "stages", 4),
    (None, "schedule", "cooperative"),
    (None, "consumers", 2),
    ("18_producer_consumer", "tile", Tile(128, 256, 64)),
    (None, "stages", 3),  # cutegemm stages the epilogue beside the pipeline, not over it: one stage fewer
    ("19_staged_epilogue", "store", "staged"),
    (None, "store", "tma"),
    (None, "stages", 4),
    (None, "cluster", (2, 1)),
    ("20_persistent_cluster", "scheduler", "persistent"),
)


def knobs(dtype: str = "bf16") -> dict[str, GemmSpec]:
    """Return the specs for 16-bit operands in order, by contender name; consecutive ones differ in one field."""
    fields: dict[str, Any] = {f"{matrix}_dtype": dtype for matrix in "abcd"} | _FIRST
    found = {twin_name("16_wgmma_serial"): GemmSpec(**fields)}
    for key, name, value in _STEPS:
        fields |= {name: value}
        label = twin_name(key) if key else knob_name(name, value)
        found[label if label not in found else f"{label} again"] = GemmSpec(**fields)
    return found


def twin(stage: Stage, dtype: str = "bf16") -> GemmSpec | None:
    """Return the stage's spec for 16-bit operands, or None for a stage without a twin."""
    return knobs(dtype).get(twin_name(stage.key)) if dtype in stage.dtypes else None


def builder_calls(
    stages: Iterable[Stage], dtype: str, shape: tuple[int, int, int], beta: float
) -> dict[str, Call]:
    """Return the calls of cutegemm's own choice and of the specs from the first stage's twin to the last's.

    Raises:
        GemmError: cutegemm refuses the problem or a spec.
    """
    import cutegemm  # compiles with the DSL, which the stages do not need

    problem = cutegemm.problem(*shape, dtype=dtype, c_dtype=dtype if beta else None)
    specs = {BUILDER: GemmSpec()} | _between(stages, dtype)
    return {name: _call(cutegemm.build(spec, problem), beta) for name, spec in specs.items()}


def _between(stages: Iterable[Stage], dtype: str) -> dict[str, GemmSpec]:
    """Return the specs between the twins of the given stages; none for fp32, which has no twins."""
    if dtype not in HALVES:
        return {}
    steps = list(knobs(dtype).items())
    wanted = {twin_name(stage.key) for stage in stages if dtype in stage.dtypes}
    places = [place for place, (name, _) in enumerate(steps) if name in wanted]
    return dict(steps[places[0] : places[-1] + 1]) if places else {}


def _call(gemm: cutegemm.Gemm, beta: float) -> Call:
    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, out: torch.Tensor) -> None:
        gemm.run(a, b, c if beta else None, beta=beta, out=out)

    return call
