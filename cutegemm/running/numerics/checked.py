# SPDX-License-Identifier: Apache-2.0
"""CUTEGEMM_CHECK=1: compares every output of every call with fp64, detects hanging kernels, and logs the plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import torch

from cutegemm.errors import CheckError
from cutegemm.running.arguments.results import Outputs, Partial
from cutegemm.running.kind import Prepared
from cutegemm.running.numerics.bounds import bound, described
from cutegemm.spec import GemmSpec

log = logging.getLogger("cutegemm")

# time limit of a call after earlier work on the stream: a minimum in seconds, and operations per second that even the
# slowest kernel reaches
HANG_SECONDS = 20.0
LEAST_FLOPS = 1e10
POLL_SECONDS = 1e-3


class Checked:
    """A prepared kind of call whose results are compared with the fp64 graph and its error bound.

    It synchronizes, copies inputs that are also outputs, and computes everything again, so it is for debugging
    only. A call that exceeds a time limit is an error, except under capture, where nothing runs.

    Args:
        prepared: the kind of call.
        spec: the spec, for messages.
        by_kernel: whether the plan's kernel computes it; torch multiplies exactly, whatever `math` the plan has.
    """

    def __init__(self, prepared: Prepared, spec: GemmSpec, by_kernel: bool = True) -> None:
        self.prepared, self.spec, self.by_kernel = prepared, spec, by_kernel
        self.kind = prepared.kind

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        kind = self.kind
        named = kind.order.named(given)
        written = {named[x].data_ptr() for x in kind.order.outs if named[x] is not None}
        inputs = {
            name: named[name].clone() if named[name].data_ptr() in written else named[name]
            for name in kind.order.inputs
        }
        outs = self._outs(named)
        before = _event(kind.device)
        result = self.prepared(given, addresses, numbers, workspace)
        if before is not None:
            self._wait(before, _event(kind.device))
        outputs = finished(result)
        values = inputs | dict(zip(kind.order.numbers, numbers, strict=True))
        for name, complaint in self._complaints(named, values, outputs, outs):
            raise CheckError(f"{complaint}\n{kind.plan}", field=name)
        shape = tuple(outputs["d"].shape) if "d" in outputs else "no d"
        log.info("checked %s of %s\n%s", ", ".join(outputs), shape, kind.plan)
        return result

    def _outs(self, named: dict[str, Any]) -> dict[str, Any]:
        """Copies of given outputs' contents before the call, if these must be preserved."""
        return {}

    def _complaints(
        self, named: dict[str, Any], values: dict[str, Any], outputs: dict[str, Any], outs: dict[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """The (output, error text) pairs of a call.

        Args:
            named: its tensors; values: the epilogue's inputs.
            outputs: its results; outs: from `_outs`.
        """
        types = {name: x.dtype for name, x in outputs.items()}
        how = described(self.kind.plan.config if self.by_kernel else None)
        expected = bound(self.kind.graph, named["a"], named["b"], values, types, *how)
        for name, value in outputs.items():
            complaint = expected[name].complaint(value)
            if complaint is not None:
                yield name, complaint

    def _wait(self, before: Any, after: Any) -> None:
        """Wait until a call has ended.

        Raises:
            CheckError: it did not end within the limit, counted from the end of earlier work on the stream.
        """
        problem = self.kind.call.problem
        bound_s, began = HANG_SECONDS + problem.flops / LEAST_FLOPS, None
        while not after.query():
            if began is None and before.query():
                began = time.monotonic()
            if began is not None and time.monotonic() - began > bound_s:
                rule = (
                    f"the call has not ended after {bound_s:.0f} s: a deadlock. The CUDA context is lost, because "
                    f"a running kernel cannot be stopped: end this process"
                )
                raise CheckError(f"{rule}\n{self.spec}\n{problem}\n{self.kind.plan}")
            time.sleep(POLL_SECONDS)


def _event(device: torch.device) -> Any:
    """An event recorded now on the current stream; None if there is no stream or a graph is being captured."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    made: Any = torch.cuda.Event
    event = made()
    event.record(torch.cuda.current_stream(device))
    return event


def finished(result: Any) -> dict[str, Any]:
    """A run's outputs by name, reductions finished."""
    found = vars(result) if isinstance(result, Outputs) else {"d": result}
    return {name: x.finish() if isinstance(x, Partial) else x for name, x in found.items()}


__all__ = ["Checked", "finished"]
