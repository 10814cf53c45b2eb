# SPDX-License-Identifier: Apache-2.0
"""Records the kernels that calls on CPU tensors would launch on a GPU; nothing is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from cutegemm.arch.device import Device
from cutegemm.config import Config
from cutegemm.ops import entry_points, fallback, perceptron, products, program, serve
from cutegemm.ops.groups import group_call, group_shortcuts, row_sum
from cutegemm.running import grouped_mm, run
from cutegemm.running.backends import launcher
from cutegemm.running.backends.counters import Counters


@contextlib.contextmanager
def recorded(record: Device) -> Iterator[dict[Config, None]]:
    """The configs that calls on CPU tensors would launch on a GPU, in order.

    Args:
        record: of the GPU.
    """
    found: dict[Config, None] = {}
    nowhere = Counters(lambda size: (1 << 20, None))  # no kernel reads these counters

    def function_for(config: Config, index: Any) -> Any:
        found[config] = None
        return lambda *_: None

    with contextlib.ExitStack() as stack:
        for module, name, stand_in in (
            *((x, "backend_for", lambda request, named: "gpu") for x in (run, grouped_mm)),
            *((x, "device_of", lambda device: record) for x in (run, grouped_mm)),
            *((x, "hopper", lambda device: True) for x in (serve, fallback, row_sum)),
            (grouped_mm, "DEFAULT", record),
            (launcher, "function_for", function_for),
            # a CPU tensor's index
            (launcher, "_current_device", lambda: None),
            (launcher, "_current_stream", lambda index: 0),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (launcher.counters, "owner", lambda index: nowhere),
        ):
            stack.enter_context(mock.patch.object(module, name, stand_in))
        forget()
        stack.callback(forget)
        yield found


def forget() -> None:
    """Clear all remembered calls and programs, so that none made here is used outside."""
    entry_points._remembered.cache_clear()
    shorts = group_call._shorts, group_shortcuts._shorts, group_shortcuts._attempts
    for known in (*shorts, perceptron._recent, products._recent, program._programs):
        known.recent, known._old = {}, {}  # type: ignore[attr-defined]
    for made in (entry_points._PLAIN, entry_points._LINEAR, entry_points._BIASED):
        program.kept(made)
        made.gemm._choose_again()
        made.plans.pop("groups", None)
