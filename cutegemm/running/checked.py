# SPDX-License-Identifier: Apache-2.0
"""CUTEGEMM_CHECK=1: every output of every call compared with fp64, and the plan that ran logged."""

from __future__ import annotations

import logging
from typing import Any

from cutegemm.config import GemmConfig
from cutegemm.errors import CheckError
from cutegemm.running.bounds import bound
from cutegemm.running.kind import Prepared
from cutegemm.running.results import Outputs, Partial

log = logging.getLogger("cutegemm")


class Checked:
    """A prepared kind of call whose results are compared with the graph in fp64, under its running error bound.

    Synchronises, copies inputs that are also outputs, and computes everything a second time: for finding bugs,
    not for use.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.kind = prepared.kind

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        kind, graph = self.kind, self.kind.graph
        named = kind.order.named(given)
        written = {named[x].data_ptr() for x in kind.order.outs if named[x] is not None}
        inputs = {
            name: named[name].clone() if named[name].data_ptr() in written else named[name]
            for name in kind.order.inputs
        }
        result = self.prepared(given, addresses, numbers, workspace)
        config: GemmConfig | None = kind.plan.config
        outputs = finished(result)
        expected = bound(
            graph,
            named["a"],
            named["b"],
            inputs | dict(zip(kind.order.numbers, numbers, strict=True)),
            {name: x.dtype for name, x in outputs.items()},
            config is None or config.approximate,
        )
        log.info(
            "checked %s of %s\n%s",
            ", ".join(outputs),
            tuple(expected["d"].expected.shape) if "d" in expected else "no d",
            kind.plan,
        )
        for name, value in outputs.items():
            complaint = expected[name].complaint(value)
            if complaint is not None:
                raise CheckError(f"{complaint}\n{kind.plan}", field=name)
        return result


def finished(result: Any) -> dict[str, Any]:
    """A run's outputs by name, reductions finished."""
    found = vars(result) if isinstance(result, Outputs) else {"d": result}
    return {name: x.finish() if isinstance(x, Partial) else x for name, x in found.items()}


__all__ = ["Checked", "finished"]
