# SPDX-License-Identifier: Apache-2.0
"""Launches that begin before earlier ones have ended, and CTAs that share an SM: right, and as planned."""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Launch, Options, run_sequence, tensor_buffer
from cutegemm.errors import PlanError, SpecError
from cutegemm.gemm import Gemm, build
from cutegemm.planning.planner import plan
from tests.support.emulator_launch import HEADER
from tests.support.numerics import assert_close

pytestmark = pytest.mark.sliced

BF16 = torch.bfloat16
RACES = Options(policy="random", seed=1, races=True)
CASES = {
    "constant b, many works": GemmSpec(tile=Tile(64, 64, 64), swap=False, sms=4, constant=("b",)),
    "constant b in a pair": GemmSpec(
        tile=Tile(64, 64, 64), swap=False, sms=4, cluster=(2, 1), constant=("b",)
    ),
    "constant both, one stage": GemmSpec(tile=Tile(64, 64, 64), swap=False, stages=1, constant=("a", "b")),
    "constant b, swapped, K in parts": GemmSpec(tile=Tile(16, 64, 64), sms=4, split_k=2, constant=("b",)),
    "two CTAs an SM": GemmSpec(tile=Tile(64, 64, 64), swap=False, ctas_per_sm=2, sms=2),
    "two CTAs an SM, in turns": GemmSpec(
        tile=Tile(64, 64, 64), swap=False, ctas_per_sm=2, sms=1, schedule="pingpong"
    ),
} | {
    # consumers ask whether another work tile follows
    f"triggers after the mainloop, {name}": GemmSpec(
        tile=Tile(64, 64, 64), swap=False, sms=4, trigger="mainloop", **fields
    )
    for name, fields in {
        "many works": {},
        "in turns": {"schedule": "pingpong"},
        "from a counter": {"scheduler": "dynamic"},
        "in turns from a counter": {"scheduler": "dynamic", "schedule": "pingpong"},
        "stream-K": {"scheduler": "stream_k"},
        "no producer": {"schedule": "multistage"},
        "K in parts in workspace": {"split_k": 2, "split_reduction": "workspace"},
        "K in parts by a launch": {"split_k": 2, "split_reduction": "launch"},
    }.items()
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_right_and_free_of_races(name):
    """Loads before the wait fill the same stages as those after it, on the first work and on later ones."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(100, 264, generator=generator).to(BF16)
    b = torch.randn(264, 136, generator=generator).to(BF16)
    run = emulator.run(Gemm(CASES[name]), a, b, options=RACES)
    assert not run.findings
    assert_close(run.d, a, b)


@pytest.mark.parametrize(
    ("fields", "waits", "triggers"),
    [
        ({"trigger": "never"}, 0, 0),
        ({"trigger": "loads"}, 2, 1),
        ({"trigger": "start"}, 2, 1),
        ({"trigger": "loads", "constant": ("b",)}, 2, 1),
        ({"trigger": "loads", "schedule": "multistage"}, 1, 1),
        ({"trigger": "mainloop"}, 2, 1),
        ({"trigger": "mainloop", "schedule": "multistage"}, 1, 1),
    ],
)
def test_every_role_waits_and_one_triggers(fields, waits, triggers):
    """Producer and consumers each wait by themselves; without a trigger nobody does."""
    config = plan(GemmSpec(tile=Tile(64, 64, 64), swap=False, **fields), problem(128, 128, 256)).config
    ptx = kernel_cache.artifact(config).ptx
    assert ptx.count("griddepcontrol.wait") == waits
    assert ptx.count("griddepcontrol.launch_dependents") == triggers


def test_only_what_no_launch_of_the_run_writes_is_loaded_early():
    """A constant operand that is copied first is the copy's launch's to write, so it waits like any other."""
    spec = GemmSpec(tile=Tile(64, 64, 64), swap=False, constant=("a", "b"))
    assert plan(spec, problem(128, 128, 256)).config.early == ("a", "b")
    copied = GemmSpec(tile=Tile(64, 64, 64), swap=False, constant=("a", "b"), b_load="relayout")
    assert plan(copied, problem(128, 128, 256)).config.early == ("a",)
    swapped = GemmSpec(tile=Tile(64, 64, 64), swap=True, constant=("b",))
    assert plan(swapped, problem(128, 128, 256)).config.early == ("a",)


SCALE_WRITER = (
    HEADER
    + """
.visible .entry k(.param .u64 p0)
{
 .reg .b64 %rd<2>; ld.param.u64 %rd0, [p0]; griddepcontrol.launch_dependents; st.global.f32 [%rd0], 0f40000000;
 ret;
}
"""
)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"schedule": "pingpong"},
        {"schedule": "multistage"},
        {"split_k": 2, "split_reduction": "launch", "constant": ("a", "b")},
    ],
)
def test_a_scalar_that_the_launch_before_writes_is_read_after_the_wait(fields):
    """A scale of 2 comes from a kernel that triggers before it stores: nothing reads it before the wait."""
    spec = GemmSpec(tile=Tile(64, 64, 64), swap=False, trigger="loads", **fields)
    of = problem(64, 64, 128, device_scalars=("alpha",))
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(x, generator=generator).to(BF16) for x in ((64, 128), (128, 64)))
    d, alpha = torch.empty(64, 64, dtype=BF16), torch.zeros(1)
    made = plan(spec, of)
    workspace = torch.zeros(made.workspace_bytes + made.counter_bytes + 256, dtype=torch.uint8)
    tensors = {"a": a, "b": b, "d": d, "alpha": alpha}
    launches = build(spec).launches(
        of, {name: x.data_ptr() for name, x in tensors.items()}, workspace.data_ptr()
    )
    buffers = [tensor_buffer(x, name) for name, x in (tensors | {"workspace": workspace}).items()]
    sequence = [Launch(SCALE_WRITER, grid=1, block=1, args=[alpha.numpy()])]
    for step, x in zip(made.steps, launches, strict=True):
        ptx = kernel_cache.artifact(step.config).ptx
        sequence.append(Launch(ptx, grid=x.grid, block=x.block, cluster=x.cluster, smem_bytes=x.smem,
                               params=list(x.params), buffers=buffers, pdl=True))  # fmt: skip
    found = run_sequence(sequence, RACES).findings
    assert not found, found
    assert_close(d, a, b, None, 2.0, 0.0)


@pytest.mark.parametrize("policy", ["eager", "lazy"])
def test_a_product_waits_for_the_copy_under_which_it_begins(policy):
    """The re-layout lets the GEMM's set-up begin at once; nothing reads the copy before it is there."""
    spec = GemmSpec(tile=Tile(64, 64, 64), swap=False, b_load="relayout", trigger="loads")
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(x, generator=generator).to(BF16) for x in ((72, 72), (72, 75)))
    d = torch.empty(72, 75, dtype=BF16)
    of = problem(72, 75, 72, a=a, b=b)
    workspace = torch.empty(plan(spec, of).workspace_bytes, dtype=torch.uint8)
    places = {name: x.data_ptr() for name, x in (("a", a), ("b", b), ("d", d))}
    launches = build(spec).launches(of, places, workspace.data_ptr())
    kernels = [kernel_cache.artifact(step.config).ptx for step in plan(spec, of).steps]
    assert "griddepcontrol.launch_dependents" in kernels[0]
    buffers = [tensor_buffer(x, name) for x, name in ((a, "A"), (b, "B"), (d, "D"), (workspace, "workspace"))]
    sequence = [
        Launch(ptx, grid=x.grid, block=x.block, cluster=x.cluster, smem_bytes=x.smem, params=list(x.params),
               buffers=buffers, pdl=i == 1) for i, (ptx, x) in enumerate(zip(kernels, launches, strict=True))
    ]  # fmt: skip
    assert not run_sequence(sequence, Options(races=True, policy=policy)).findings
    assert_close(d, a, b)


@pytest.mark.parametrize("policy", ["eager", "lazy"])
def test_a_copy_waits_for_the_launches_before_it(policy):
    """A copy begins under a GEMM that reads the copies of before and writes what it copies: D is the next A."""
    spec = GemmSpec(tile=Tile(64, 64, 64), swap=False, a_load="relayout", b_load="relayout", trigger="loads")
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(75, 75, generator=generator).to(BF16) for _ in range(2))
    between, d = (torch.zeros(75, 75, dtype=BF16) for _ in range(2))
    of = problem(75, 75, 75, a=a, b=b)
    made = plan(spec, of)
    workspace = torch.zeros(made.workspace_bytes, dtype=torch.uint8)
    kernels = [kernel_cache.artifact(step.config).ptx for step in made.steps]
    assert "griddepcontrol.wait" in kernels[0]
    tensors = {"A": a, "B": b, "between": between, "D": d, "workspace": workspace}
    buffers = [tensor_buffer(x, name) for name, x in tensors.items()]
    sequence = []
    for given, out in ((a, between), (between, d)):
        places = {name: x.data_ptr() for name, x in (("a", given), ("b", b), ("d", out))}
        for ptx, x in zip(kernels, build(spec).launches(of, places, workspace.data_ptr()), strict=True):
            sequence.append(Launch(ptx, grid=x.grid, block=x.block, cluster=x.cluster, smem_bytes=x.smem,
                                   params=list(x.params), buffers=buffers, pdl=True))  # fmt: skip
    found = run_sequence(sequence, Options(races=True, policy=policy)).findings
    assert not found, found
    assert_close(between, a, b)
    assert_close(d, between, b)


def test_two_ctas_share_what_an_sm_has():
    """Shared memory, registers and accumulators of each leave room for the other; what does not is refused."""
    p = plan(GemmSpec(tile=Tile(64, 128, 64), swap=False, ctas_per_sm=2), problem(2048, 2048, 512))
    limits = p.device.limits
    assert 2 * (p.smem_bytes + 1024) <= limits.smem_bytes + 1024
    assert p.clusters == 2 * p.device.sms
    used = kernel_cache.artifact(p.config).resources
    assert 2 * used.registers * p.config.threads <= limits.registers_per_sm
    with pytest.raises(PlanError) as caught:
        plan(GemmSpec(tile=Tile(128, 256, 64), swap=False, ctas_per_sm=2), problem(2048, 2048, 512))
    assert (caught.value.field, caught.value.nearest) == ("tile.n", 96)
    with pytest.raises(SpecError) as refused:
        GemmSpec(constant=("c",))
    assert refused.value.field == "constant"
