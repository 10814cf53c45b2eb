# SPDX-License-Identifier: Apache-2.0
"""Outputs of an epilogue against the bounds of `cutegemm.running.numerics.bounds`."""

from cutegemm.running.numerics.bounds import APPROXIMATE, OWN, TANH, bound


def assert_outputs_close(got: dict, graph, a, b, inputs: dict, approximate: bool | None = None) -> None:
    """Every output present, of the right shape, within its bound; NaN and infinities where fp64 has them.

    Partial results must have been combined (`reference.combine`) before. `approximate` is as for `bound`; None is that
    of a kernel with these outputs (`KernelConfig.approximate`).
    """
    if approximate is None:
        approximate = not graph.reductions and all(x.dtype.itemsize <= 2 for x in got.values())
    assert set(got) == {x.name for x in graph.outputs}
    bounds = bound(graph, a, b, inputs, {name: x.dtype for name, x in got.items()}, approximate)
    for name, limits in bounds.items():
        assert got[name].shape == limits.expected.shape, f"{name} is {tuple(got[name].shape)}"
        wrong = limits.complaint(got[name])
        assert wrong is None, f"{name}: {wrong}, of\n{graph}"


__all__ = ["APPROXIMATE", "OWN", "TANH", "assert_outputs_close", "bound"]
