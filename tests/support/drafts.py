# SPDX-License-Identifier: Apache-2.0
"""Tensor-core configs of plans, drafts of them with other numbers, and many of those as one draft of arrays."""

from __future__ import annotations

import dataclasses
import random

import numpy as np

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.config import KernelConfig, KernelDraft
from cutegemm.planning.planner import plan
from tests.support.fused_kernels import everything

ODD = {"a": {"aligned": False}, "b": {"aligned": False}}
# specs and problems whose configs have every load, store, reduction, scheduler and family
CASES = {
    "plain": (GemmSpec(), problem(512, 512, 512)),
    "pingpong": (GemmSpec(schedule="pingpong"), problem(512, 512, 512, d_dtype="fp32")),
    "multistage": (GemmSpec(schedule="multistage", ctas_per_sm=2), problem(256, 256, 256)),
    "shifted": (GemmSpec(a_load="shift", b_load="cp_async"), problem(512, 512, 512)),
    "gathered": (GemmSpec(b_load="gather", store="staged"), problem(512, 512, 512, majors="mn")),
    "gated": (
        GemmSpec(epilogue=epi.swiglu("halves")),
        problem(512, 512, 512, epilogue=epi.swiglu("halves")),
    ),
    "gated along m": (
        GemmSpec(epilogue=epi.swiglu("halves"), swap=True),
        problem(64, 512, 512, epilogue=epi.swiglu("halves")),
    ),
    "a cluster's splits": (GemmSpec(cluster=(1, 1, 4)), problem(128, 512, 1024, c_dtype="fp32")),
    "left": (GemmSpec(tile=Tile(64, 64, 64), split_k=4, split_reduction="launch"), problem(128, 128, 1024)),
    "stream_k": (GemmSpec(scheduler="stream_k", store="direct"), problem(640, 640, 512)),
    "dynamic": (GemmSpec(scheduler="dynamic", cluster=(2, 1)), problem(640, 640, 512)),
    "few rows": (GemmSpec(tile=Tile(64, 32, 64), swap=False, split_k=1), problem(8, 512, 4096, majors="kk")),
    "tf32": (GemmSpec(math="tf32", a_load="gather"), problem(512, 512, 512, dtype="fp32", majors="kk")),
    "three that promote": (
        GemmSpec(math="tf32", promote=64, consumers=3, tile=Tile(192, 72, 32), swap=False),
        problem(512, 512, 512, dtype="fp32", majors="kk"),
    ),
    "many outputs": (GemmSpec(epilogue=everything), problem(512, 512, 512, epilogue=everything)),
}
NUMBERS = {
    "stages": (0, 1, 2, 4, 9),
    "consumers": (1, 1, 2, 2, 3, 4, 9),
    "pingpong": (False, False, True),
    "epi_n": (8, 16, 32, 64, 24, 4),
    "epilogue_stages": (1, 2, 3, 5),
    "input_stages": (1, 2, 3, 4),
    "ctas_per_sm": (1, 1, 2),
    "persistent": (True, True, False),
    "serpentine": (False, False, True),
    "by_gpc": (False, False, True),
    "splits": (1, 1, 2, 4, 6),
    "cluster_splits": (1, 1, 2, 4),
    "slices": (1, 1, 2, 4),
    "adders": (1, 1, 2),
    "streamed": (False, False, True),
    "dynamic": (False, False, True),
    "split_reduction": ("none", "none", "cluster", "workspace", "launch", "atomic"),
}
EXTENTS = ((64, 128, 192, 256, 96, 0), (64, 128, 256, 208, 24, 60, 264), (64, 32, 16, 128, 24))
CTAS = (1, 1, 2, 4, 3)
SWIZZLES = ("128B", "64B", "32B", "none")
BOXES = (0, 0, 8, 12, 64)


def configs() -> dict[str, KernelConfig]:
    """The configs of every case, and those of launches that add splits."""
    found = {}
    for name, (spec, of) in CASES.items():
        for step in plan(spec, of).steps:
            if isinstance(getattr(step, "config", None), KernelConfig):
                found[f"{name}, {step.name}"] = step.config
    return found


def drawn(config: KernelConfig, count: int, seed: int) -> list[KernelDraft]:
    """Drafts like a config: a few of its numbers are others, and few of them are sound."""
    source, found = random.Random(seed), []
    for _ in range(count):
        changed = {name: source.choice(values) for name, values in NUMBERS.items() if source.random() < 0.12}
        if source.random() < 0.5:
            changed["tile"] = tuple(source.choice(values) for values in EXTENTS)
        if source.random() < 0.2:
            changed["cluster"] = (source.choice(CTAS), source.choice(CTAS))
        if source.random() < 0.3:
            changed["operands"] = tuple(
                dataclasses.replace(x, swizzle=source.choice(SWIZZLES), box_rows=source.choice(BOXES))
                for x in config.operands
            )
        found.append(dataclasses.replace(config.draft, **changed))
    return found


def stacked(drafts: list[KernelDraft]) -> KernelDraft:
    """Drafts that differ in numbers alone as one, whose numbers are arrays."""

    def column(values) -> np.ndarray:
        return np.array(list(values))

    first = drafts[0]
    return dataclasses.replace(
        first,
        **{name: column(getattr(x, name) for x in drafts) for name in NUMBERS},
        tile=tuple(column(x.tile[axis] for x in drafts) for axis in range(3)),
        cluster=tuple(column(x.cluster[axis] for x in drafts) for axis in range(2)),
        operands=tuple(
            dataclasses.replace(
                first.operands[i],
                swizzle=column(x.operands[i].swizzle for x in drafts),
                box_rows=column(x.operands[i].box_rows for x in drafts),
            )
            for i in range(2)
        ),
    )
