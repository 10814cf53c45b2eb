# SPDX-License-Identifier: Apache-2.0
"""Tensor stores clip by 16-byte chunks, as an H200 does: a kernel that relies on element clipping is caught."""

import dataclasses

import pytest
import torch

from cutegemm import GemmSpec, Tile
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.compiler import record_launches
from cutegemm.emulator import Step, run_steps, tensor_buffer
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import EmulatorError
from cutegemm.planning.planner import plan
from cutegemm.plans.kernel_plan import launch_arguments
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.check import aligned
from cutegemm.running.arguments.describe import describe


def described(graph, request):
    """The problem of a call."""
    return aligned(describe(graph, request), request).problem


def store_by_tma(n: int, d: torch.Tensor):
    """Run an 8 x n product whose D is stored by TMA whatever n is."""
    a, b = torch.ones(8, 64).bfloat16(), torch.ones(64, 72).bfloat16()[:, :n]
    graph = linear_combination(False)
    aligned = described(graph, Request(a, torch.ones(64, 8).bfloat16()))
    config = plan(GemmSpec(tile=Tile(64, 16, 64), store="tma"), aligned).config
    chosen = plan(
        GemmSpec(tile=Tile(64, 16, 64), store="staged"), described(graph, Request(a, b, outs={"d": d}))
    )
    step = dataclasses.replace(chosen.steps[-1], config=config)
    chosen = dataclasses.replace(chosen, steps=(step,))
    addresses = {"a": a.data_ptr(), "b": b.data_ptr(), "d": d.data_ptr()}
    ((kernel, args),) = launch_arguments(chosen, addresses, 0, {"alpha": 1.0}, 0)
    made = kernel_cache.artifact(kernel)
    (launch,) = record_launches(made.obj, made.ptx, args)
    buffers = [
        tensor_buffer(x, name)
        for x, name in ((a, "A"), (b, "B"), (d._base if d._base is not None else d, "D"))
    ]
    run_steps(
        [Step(made.ptx, launch.grid, launch.block, launch.cluster, launch.smem, launch.params)], buffers
    )


@pytest.mark.parametrize(("n", "written"), [(8, 8), (3, 8), (9, 16)])
def test_a_store_writes_whole_chunks(n, written):
    """The columns up to the next multiple of 16 bytes are overwritten, and none beyond."""
    whole = torch.full((9, 24), 7.0).bfloat16()
    store_by_tma(n, whole[:8, :n])
    assert (whole[:8, :n] == 64).all()
    assert (whole[:8, n:written] != 7).all() and (whole[:8, written:] == 7).all() and (whole[8] == 7).all()


def test_a_chunk_past_the_buffer_is_a_fault():
    """Where the last row's chunk leaves the allocation, the store is out of bounds."""
    flat = torch.zeros(7 * 8 + 3).bfloat16()
    with pytest.raises(EmulatorError, match="writes whole 16-byte chunks, past the end of its buffer"):
        store_by_tma(3, flat.as_strided((8, 3), (8, 1)))
