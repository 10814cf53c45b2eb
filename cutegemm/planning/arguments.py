# SPDX-License-Identifier: Apache-2.0
"""The host arguments of each launch of a run, as `launch_layout` packs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cutegemm.config import Config
from cutegemm.launch_layout import layout_of
from cutegemm.planning.kernel_plan import KernelPlan


def launch_arguments(
    plan: KernelPlan,
    addresses: Mapping[str, int],
    workspace: int,
    numbers: Mapping[str, float],
    stream: int,
) -> Iterator[tuple[Config, tuple[Any, ...]]]:
    """(config, host arguments) of every launch of a run, in order.

    Args:
        plan: of the run.
        addresses: of a, b, every tensor input and output, and every device scalar, by name; where the run counts, as
            `COUNTERS` that of `plan.counter_bytes` bytes that are zero and that nobody else uses meanwhile.
        workspace: address of `plan.workspace_bytes` bytes, 16-byte aligned.
        numbers: the epilogue's numbers by name.
        stream: CUDA stream handle.
    """
    for step in plan.steps:
        packed = layout_of(step.config).pack(step.values(addresses, workspace, numbers))
        yield step.config, (*packed, stream)
