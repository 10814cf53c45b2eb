# SPDX-License-Identifier: Apache-2.0
"""Deleting any fence, wait, arrive or barrier of the builder's kernels is noticed, but for listed survivors.

A new survivor fails the test: either the emulator misses something, or the instruction is not needed.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm.emulator import Options, front
from cutegemm.errors import EmulatorError
from cutegemm.gemm import Gemm, representative
from tests.support.emulator_pipeline import SYNCHRONISATION, without
from tests.support.epilogues import assert_outputs_close
from tests.support.fused_kernels import everything, gemm_of, operands, results
from tests.support.numerics import assert_close

SMALL = {"tile": Tile(64, 64, 64), "stages": 2, "sms": 2}  # several tiles for each CTA
CASES = {  # family -> (spec, shape, type)
    "cluster": (GemmSpec(**SMALL, cluster=(2, 1)), (200, 136, 200), torch.bfloat16),
    "pingpong": (GemmSpec(**SMALL, schedule="pingpong", cluster=(2, 1)), (200, 136, 200), torch.bfloat16),
    "gather": (GemmSpec(**SMALL, a_load="gather", b_load="gather"), (66, 66, 130), torch.bfloat16),
    "shift": (
        GemmSpec(**SMALL | {"stages": 3, "sms": 1}, a_load="shift", b_load="cp_async"),
        (66, 42, 195),
        torch.bfloat16,
    ),
    "multistage": (GemmSpec(**SMALL, schedule="multistage"), (136, 136, 200), torch.bfloat16),
    "simt": (GemmSpec(), (70, 70, 40), torch.float32),
}
SURVIVORS = {  # family -> opcode -> (how many, why nothing is lost without it)
    "cluster": {},
    "pingpong": {},
    "gather": {
        "fence.mbarrier_init.release.cluster": (1, "no asynchronous copy uses the barriers; the CTA barrier orders"),
        "bar.sync": (1, "before a staging buffer is overwritten: with two of them, the barrier after the write of the "
                        "other one has already ordered its readers"),
    },
    "shift": {
        "fence.mbarrier_init.release.cluster": (1, "as for gather"),
        "bar.sync": (1, "as for gather"),
        "bar.warp.sync": (2, "before words are read: lanes of a warp are told apart for plain accesses, not for "
                             "cp.async; after it: with three stages the one before the next tile's reads orders them"),
    },
    "multistage": {
        "mbarrier.init.shared.b64": (2, "the empty barriers, which this family never uses"),
        "bar.sync": (2, "after the mainloop: what the next tile loads first, the barrier within the loop has freed; "
                     "within the loop, after the wait: the only warpgroup's wait covers it (strict runs report it)"),
    },
    "simt": {},
    "fused": {},
}  # fmt: skip
ORDERS = [{"policy": "lazy"}, *({"policy": "random", "seed": seed} for seed in (1, 2, 3, 4))]


def plain(name: str):
    """A run of D = A B + C / 2 under options, compared with fp64."""
    spec, (m, n, k), dtype = CASES[name]
    gemm = Gemm(spec, representative(GemmSpec()))
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(s, generator=generator).to(dtype) for s in ((m, k), (k, n), (m, n)))

    def run(options: Options) -> emulator.Run:
        made = emulator.run(gemm, a, b, c, alpha=1.0, beta=0.5, options=options)
        assert_close(made.d, a, b, c, 1.0, 0.5)
        return made

    return run


def fused():
    """A run with an epilogue that reads every kind of input and writes every kind of output."""
    gemm = gemm_of(everything, "cooperative", sms=1, stages=2)
    a, b, inputs = operands(gemm.spec.epilogue, (136, 40, 136), "emulator")

    def run(options: Options) -> emulator.Run:
        made = emulator.run(gemm, a, b, **inputs, options=options)
        assert_outputs_close(results(made.d), gemm.spec.epilogue, a, b, inputs)
        return made

    return run


def is_silent(run, order: dict) -> bool:
    """Whether nothing is found and the result is right."""
    try:
        return not run(Options(races=True, max_seconds=60, **order)).findings
    except (EmulatorError, AssertionError):
        return False


@pytest.mark.parametrize("name", SURVIVORS)
def test_only_listed_deletions_go_unnoticed(name, monkeypatch):
    """The detector, a fault, a deadlock or a wrong D tells of every other one, in each kernel of the run."""
    run = fused() if name == "fused" else plain(name)
    assert all(is_silent(run, order) for order in ORDERS)
    used: list[str] = []
    parsed = front.kernel_of
    monkeypatch.setattr(front, "kernel_of", lambda ptx: (used.append(ptx), parsed(ptx))[1])
    assert is_silent(run, {})
    survivors: Counter[str] = Counter()
    for target in dict.fromkeys(used):
        kernel = parsed(target)
        places = [i for i, ins in enumerate(kernel.code) if ins.op.startswith(SYNCHRONISATION)]
        assert places
        for place in places:
            changed = {target: without(kernel, place)}
            monkeypatch.setattr(front, "kernel_of", lambda ptx, c=changed: c.get(ptx) or parsed(ptx))
            survivors[kernel.code[place].op] += all(is_silent(run, order) for order in ORDERS)
    assert +survivors == {op: count for op, (count, _) in SURVIVORS[name].items()}
