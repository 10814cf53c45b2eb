# SPDX-License-Identifier: Apache-2.0
"""Deleting any fence, wait, arrive or barrier of the builder's kernels is noticed, but for listed survivors.

A new survivor fails the test: either the emulator misses something, or the instruction is not needed.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from pipeline_kernel import without
from test_mutations import SYNCHRONISATION

from cutegemm import GemmSpec, Tile, emulator
from cutegemm.build import Gemm, representative
from cutegemm.emulator import Options, front
from cutegemm.errors import EmulatorError
from tests.support.numerics import assert_close

SMALL = {"tile": Tile(64, 64, 64), "stages": 2, "sms": 2}  # several tiles for each CTA
CASES = {  # family -> (spec, shape, type)
    "cluster": (GemmSpec(**SMALL, cluster=(2, 1)), (200, 136, 200), torch.bfloat16),
    "gather": (GemmSpec(**SMALL, a_load="gather", b_load="gather"), (66, 66, 130), torch.bfloat16),
    "multistage": (GemmSpec(**SMALL, schedule="multistage"), (136, 136, 200), torch.bfloat16),
    "simt": (GemmSpec(), (70, 70, 40), torch.float32),
}
SURVIVORS = {  # family -> opcode -> (how many, why nothing is lost without it)
    "cluster": {},
    "gather": {
        "fence.mbarrier_init.release.cluster": (1, "no asynchronous copy uses the barriers; the CTA barrier orders"),
        "bar.sync": (1, "before a staging buffer is overwritten: with two of them, the barrier after the write of the "
                        "other one has already ordered its readers"),
    },
    "multistage": {
        "mbarrier.init.shared.b64": (2, "the empty barriers, which this family never uses"),
        "bar.sync": (1, "after the mainloop: what the next tile loads first, the barrier within the loop has freed"),
    },
    "simt": {},
}  # fmt: skip
ORDERS = [{"policy": "lazy"}, *({"policy": "random", "seed": seed} for seed in (1, 2, 3, 4))]


@pytest.mark.parametrize("name", CASES)
def test_only_listed_deletions_go_unnoticed(name, monkeypatch):
    """The detector, a fault, a deadlock or a wrong D tells of every other one."""
    spec, (m, n, k), dtype = CASES[name]
    gemm = Gemm(spec, representative(GemmSpec()))
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(s, generator=generator).to(dtype) for s in ((m, k), (k, n), (m, n)))

    def is_silent(order: dict) -> bool:
        try:
            run = emulator.run(
                gemm, a, b, c, alpha=1.0, beta=0.5, options=Options(races=True, max_seconds=60, **order)
            )
            assert_close(run.d, a, b, c, 1.0, 0.5)
        except (EmulatorError, AssertionError):
            return False
        return not run.findings

    assert all(is_silent(order) for order in ORDERS)
    used: list[str] = []
    parsed = front.kernel_of
    monkeypatch.setattr(front, "kernel_of", lambda ptx: (used.append(ptx), parsed(ptx))[1])
    assert is_silent({})
    kernel = parsed(used[-1])
    places = [i for i, ins in enumerate(kernel.code) if ins.op.startswith(SYNCHRONISATION)]
    survivors: Counter[str] = Counter()
    for place in places:
        mutant = without(kernel, place)
        monkeypatch.setattr(
            front, "kernel_of", lambda ptx, mutant=mutant: mutant if ptx == used[-1] else parsed(ptx)
        )
        survivors[kernel.code[place].op] += all(is_silent(order) for order in ORDERS)
    assert +survivors == {op: count for op, (count, _) in SURVIVORS[name].items()}
    assert len(places) > sum(survivors.values())
