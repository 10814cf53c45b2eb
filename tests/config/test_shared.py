# SPDX-License-Identifier: Apache-2.0
"""`SharedPlan`: shared memory and barriers by name, in kernels, plans and the emulator's reports."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch

from cutegemm import Gemm, GemmSpec, Tile, emulator, plan, problem
from cutegemm.compiling import kernel_cache
from cutegemm.config.shared import SharedPlan
from cutegemm.errors import EmulatorError
from cutegemm.kernels.mainloop.shared_storage import Shared

SPECS = {
    "cooperative": GemmSpec(tile=Tile(128, 64, 64), schedule="cooperative"),
    "pingpong": GemmSpec(tile=Tile(64, 64, 64), schedule="pingpong"),
    "multistage": GemmSpec(tile=Tile(64, 64, 64), schedule="multistage"),
    "dynamic": GemmSpec(tile=Tile(128, 64, 64), scheduler="dynamic"),
    "splits": GemmSpec(tile=Tile(128, 64, 64), split_k=4, split_reduction="workspace"),
    "in turn": GemmSpec(tile=Tile(192, 48, 128), consumers=3, split_k=4, split_reduction="workspace"),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_mbarrier_has_a_place_of_its_own(name):
    """Barriers of all kinds fill the regions that hold them, byte by byte, and named barriers have distinct numbers."""
    dtype = "fp8" if name == "in turn" else "bf16"
    config = plan(SPECS[name], problem(512, 512, 512, dtype=dtype, majors="kk", d_dtype="bf16")).config
    shared = SharedPlan.of(config)
    places = [(at, size) for label, at, size in shared.named if label.startswith("barrier ")]
    regions = [x for x in shared.regions if x.name.endswith("barriers")]
    taken = sorted(byte for at, size in places for byte in range(at, at + size))
    assert taken == [byte for x in regions for byte in range(x.offset, x.end)]
    named = [x.first + i for x in shared.barriers if not x.place for i in range(x.count)]
    assert len(set(named)) == len(named) and all(0 < x < 16 for x in named)


def test_reports_of_the_emulator_name_barriers(monkeypatch):
    """A kernel that announces too many bytes hangs, and the report says at which barrier by the plan's name."""
    found = kernel_cache.artifact

    def broken(config):
        made = found(config)
        size = str(sum(x.delivered for x in config.stage))
        assert re.search(rf"mov\.b32 \t%r\d+, {size};", made.ptx)
        return dataclasses.replace(made, ptx=made.ptx.replace(f", {size};", f", {int(size) + 16};"))

    monkeypatch.setattr(kernel_cache, "artifact", broken)
    a, b = torch.zeros(128, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)
    with pytest.raises(EmulatorError, match=r"mbarrier at shared offset 0x[0-9a-f]+ \(barrier full 0\)"):
        emulator.run(Gemm(SPECS["cooperative"]), a, b, options=emulator.Options(progress=False))


def test_regions_are_allocated_in_order():
    """A region that is asked for before the one that lies below it would lie elsewhere than the plan says."""
    shared = Shared.create(plan(SPECS["cooperative"], problem(512, 512, 512)).config)
    first, second = (x.name for x in shared.plan.regions[:2])
    taken = dataclasses.replace(shared, allocator=SimpleNamespace(allocate=lambda size, align: (size, align)))
    with pytest.raises(
        RuntimeError, match=f"shared memory: {first} lies before {second} and is not allocated"
    ):
        taken.array(second, None)
    assert not taken.taken
