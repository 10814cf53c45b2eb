# SPDX-License-Identifier: Apache-2.0
"""The meters against what Nsight Compute counted on an H200: single accesses, and whole kernels."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from benchmarks import emulator_banks, emulator_nsight
from benchmarks.emulator_cases import kept
from cutegemm.emulator import Buffer, Launch, Module, Options, launch
from tests.support.emulator_fixtures import FIXTURES, recorded
from tests.support.emulator_launch import aligned

COUNTED = recorded("accesses.npz")
KERNELS = json.loads(emulator_nsight.RESULTS.read_text())["kernels"]
STEPS = kept(FIXTURES / "kernels.json.xz")
METERS = (
    "shared_load_wavefronts",
    "shared_store_wavefronts",
    "global_load_requests",
    "global_load_sectors",
    "global_store_requests",
    "global_store_sectors",
)


@functools.cache
def emulated(name: str) -> dict[str, int]:
    """The emulator's counts of a kernel."""
    return emulator_nsight.emulated(name, STEPS)


def places() -> dict[str, int]:
    """Where each access's patterns begin in the counts."""
    lengths = [len(emulator_banks.patterns(a)) for a in emulator_banks.ACCESSES.values()]
    assert sum(lengths) == len(COUNTED[METERS[0]]), "the patterns have changed: profile again"
    return dict(zip(emulator_banks.ACCESSES, np.cumsum([0, *lengths[:-1]]).tolist(), strict=True))


@pytest.mark.parametrize("name", emulator_banks.ACCESSES)
def test_single_accesses_cost_what_the_hardware_counts(name):
    """Wavefronts, sectors and requests of every pattern of lane addresses, idle lanes included."""
    access, first = emulator_banks.ACCESSES[name], places()[name]
    kernel = Module.parse(emulator_banks.module()).kernel(name)
    for i, offsets in enumerate(emulator_banks.patterns(access)):
        arrays = [
            aligned(32, np.uint32),
            aligned(32, np.uint32),
            aligned(emulator_banks.SHARED_BYTES + 512, np.uint8),
        ]
        arrays[1][:] = offsets
        what = Launch(
            grid=(1, 1, 1),
            block=(32, 1, 1),
            params=[x.ctypes.data.to_bytes(8, "little") for x in arrays],
            buffers=[Buffer(x.ctypes.data, x.nbytes, "memory") for x in arrays],
        )
        counters = launch(kernel, what, Options(meter=True)).counters
        got = {m: counters.get(m, 0) for m in METERS}
        assert got == {m: int(COUNTED[m][first + i]) for m in METERS}, f"pattern {i}: {offsets.tolist()}"


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_cost_what_the_hardware_counts(name):
    """Arithmetic, matrix instructions and global traffic to the last one, wavefronts of the LSU within 2 %."""
    assert not emulator_nsight.disagreements(emulator_nsight.hardware(KERNELS[name]), emulated(name))


def test_the_notes_show_these_numbers():
    """The table of the notes is what `emulator_nsight table` writes."""
    opening, closing = emulator_nsight.MARKERS
    shown = emulator_nsight.NOTES.read_text().split(opening)[1].split(closing)[0].strip().splitlines()
    assert shown == emulator_nsight.table(KERNELS, {name: emulated(name) for name in KERNELS})
