# SPDX-License-Identifier: Apache-2.0
"""The launch that loads a kernel: over sample arguments, it ends and leaves memory alone."""

import pytest
import torch

from cutegemm import GemmSpec, Tile, problem
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.compiler import record_launches
from cutegemm.emulator import Step, run_steps, tensor_buffer
from cutegemm.launch_layout import layout_of
from cutegemm.planning.planner import plan

SMALL = Tile(64, 64, 64)
SPECS = {
    "chosen": GemmSpec(),
    "swapped": GemmSpec(swap=True, split_k=1),
    "parts in a cluster": GemmSpec(tile=SMALL, split_k=4, swap=False),
    "swapped parts": GemmSpec(tile=Tile(16, 64, 64), split_k=2, swap=True),
    "parts in workspace": GemmSpec(tile=SMALL, split_k=4, split_reduction="workspace", swap=False),
    "parts in clusters and workspace": GemmSpec(
        tile=SMALL, cluster=(1, 1, 2), split_k=4, split_reduction="workspace", swap=False
    ),
    "parts by a launch": GemmSpec(
        tile=SMALL, cluster=(1, 1, 2), split_k=4, split_reduction="launch", swap=False
    ),
    "parts as they come": GemmSpec(tile=SMALL, split_k=4, split_reduction="atomic", swap=False),
    "stream-K": GemmSpec(tile=SMALL, scheduler="stream_k", swap=False),
    "dynamic": GemmSpec(tile=SMALL, scheduler="dynamic", cluster=(2, 1), swap=False),
    "a tile a CTA": GemmSpec(tile=SMALL, scheduler="per_tile", swap=False),
    "pingpong": GemmSpec(tile=SMALL, schedule="pingpong", cluster=(2, 1)),
    "multistage": GemmSpec(tile=SMALL, schedule="multistage"),
    "two CTAs an SM": GemmSpec(tile=SMALL, ctas_per_sm=2, swap=False),
    "CUDA cores": GemmSpec(schedule="simt"),
    "copied": GemmSpec(tile=SMALL, a_load="relayout", swap=False),
    "shifted": GemmSpec(tile=SMALL, a_load="shift", b_load="shift", swap=False),
    "copied by threads": GemmSpec(tile=SMALL, a_load="cp_async", b_load="gather", swap=False),
    "copied bytes": GemmSpec(a_load="relayout", b_load="relayout"),
    "scaled bytes": GemmSpec(scale_a=("block", 1, 128), scale_b=("block", 128, 128)),
}
# where the operands are not bf16
TYPES = {"copied bytes": ("fp8_e4m3", "kn"), "scaled bytes": ("fp8_e4m3", "kk")}


@pytest.mark.sliced
@pytest.mark.parametrize("name", SPECS)
def test_the_launch_that_loads_a_kernel_ends_and_writes_nothing_else(name):
    """Every launch of a plan, with the arguments that `function_for` gives it, ends within scratch memory."""
    scratch = torch.zeros(8192, dtype=torch.uint8)
    spec, (dtype, majors) = SPECS[name], TYPES.get(name, ("bf16", "kn"))
    graph = spec.epilogue if spec.epilogue != "auto" else None
    for step in plan(spec, problem(64, 4096, 4096, dtype=dtype, majors=majors, epilogue=graph)).steps:
        made = kernel_cache.artifact(step.config)
        arguments = (*layout_of(step.config).sample(scratch.data_ptr()), 0)
        launches = record_launches(made.obj, made.ptx, arguments)
        steps = [Step(made.ptx, x.grid, x.block, x.cluster, x.smem, x.params) for x in launches]
        assert steps
        run_steps(steps, [tensor_buffer(scratch, "scratch")])
