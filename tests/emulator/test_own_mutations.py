# SPDX-License-Identifier: Apache-2.0
"""Deleting any fence, wait, arrive or barrier of the builder's kernels is noticed, but for listed survivors.

A new survivor fails the test: either the emulator misses something, or the instruction is not needed.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem, quantize
from cutegemm import epilogue as epi
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Launch, Options, run_sequence, tensor_buffer
from cutegemm.emulator.launching import front
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import EmulatorError
from cutegemm.gemm import Gemm, build, representative
from cutegemm.ops.quantized import kernel
from cutegemm.planning.planner import plan
from cutegemm.running.backends.helper_launch import on_emulator
from cutegemm.running.numerics.bounds import bound
from tests.support.emulator_pipeline import SYNCHRONISATION, without
from tests.support.epilogues import assert_outputs_close
from tests.support.fused_kernels import everything, gemm_of, operands, results
from tests.support.heads import seed
from tests.support.numerics import assert_close
from tests.support.profile import cases

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
    # of more columns than a box has, so that cp.async brings the words
    "shift by cp.async": (
        GemmSpec(tile=Tile(64, 256, 16), stages=3, sms=1, swap=False, b_load="shift", store="direct"),
        (66, 43, 80),
        torch.bfloat16,
    ),
    "multistage": (GemmSpec(**SMALL, schedule="multistage"), (136, 136, 200), torch.bfloat16),
    "simt": (GemmSpec(), (70, 70, 40), torch.float32),
}
NEWER = {  # the same, of kernels that share a tile's sum, a counter or its launch's time
    "swap": (GemmSpec(**SMALL | {"tile": Tile(16, 64, 64)}, swap=True), (30, 136, 200), torch.bfloat16),
    # a rest of A's tile that two consumers zero together
    "narrow box": (GemmSpec(**SMALL | {"tile": Tile(128, 32, 64)}, swap=False), (30, 72, 200), torch.bfloat16),
    "split in a cluster": (GemmSpec(**SMALL, split_k=2), (130, 72, 304), torch.bfloat16),
    "split through a workspace": (
        GemmSpec(**SMALL | {"sms": 4}, split_k=2, split_reduction="workspace", swap=False),
        (130, 136, 304), torch.bfloat16),
    "split, added as parts come": (
        GemmSpec(**SMALL | {"sms": 4}, split_k=3, split_reduction="atomic", swap=False),
        (66, 72, 304), torch.bfloat16),
    "split, added by a launch": (
        GemmSpec(**SMALL | {"sms": 4}, cluster=(1, 1, 2), split_k=4, split_reduction="launch", swap=False),
        (66, 72, 264), torch.bfloat16),
    "stream_k": (GemmSpec(**SMALL | {"sms": 5}, scheduler="stream_k", swap=False), (130, 136, 304), torch.bfloat16),
    # two k tiles each, so that the producer takes works as fast as it may
    "dynamic": (
        GemmSpec(tile=Tile(64, 64, 64), stages=8, sms=4, schedule="pingpong", cluster=(2, 1), scheduler="dynamic"),
        (264, 136, 128), torch.bfloat16),
}  # fmt: skip
BYTES = {"tile": Tile(64, 64, 128), "stages": 2, "sms": 2, "swap": False}
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
COUNTED = (2, "around an atom.acq_rel between CTA barriers, which releases and acquires for all of them")
HALVES = {
    "wgmma.fence.sync.aligned": (6, "a stage's WGMMAs have two, before each half: either one covers the sums that were "
                                 "read before both"),
}  # fmt: skip
PERMISSION = (1, "the next launch may start early: leave, not order")
SURVIVORS = {  # family -> opcode -> (how many, why nothing is lost without it)
    "cluster": {},
    "pingpong": {},
    "dynamic": {
        "bar.warp.sync": (4, "before one lane releases the slot that a warp has read: the lanes read together"),
        "bar.sync": (1, "a turn: the next work's number, which is awaited too, comes when the other's stages are free"),
    },
    "gather": {
        "fence.mbarrier_init.release.cluster": (1, "no asynchronous copy uses the barriers; the CTA barrier orders"),
        "bar.warp.sync": (1, "before a staging buffer is overwritten: its readers, lanes of the same warp, have met "
                             "again in the mainloop between"),
    },
    "shift": {"bar.warp.sync": (1, "as for gather")},
    "shift by cp.async": {
        "bar.warp.sync": (1, "before words are read: lanes of a warp are told apart for plain accesses, not for "
                             "cp.async"),
    },
    "multistage": {
        "mbarrier.init.shared.b64": (2, "the empty barriers, which this family never uses"),
        "bar.sync": (2, "after the mainloop: what the next tile loads first, the barrier within the loop has freed; "
                     "within the loop, after the wait: the only warpgroup's wait covers it (strict runs report it)"),
    },
    "simt": {},
    "fused": {},
    "swap": {},
    "narrow box": {},
    "split in a cluster": {
        "mbarrier.try_wait.parity.shared.b64": (1, "the producer's last waits before it ends, for CTAs that arrive "
                                                "from outside (in a cluster's kernels); here no other CTA does"),
    },
    "split through a workspace": {"fence.acq_rel.gpu": COUNTED},
    "split, added as parts come": {"fence.acq_rel.gpu": COUNTED},
    "split, added by a launch": {
        "mbarrier.try_wait.parity.shared.b64": (1, "as for split in a cluster"),
        "cp.async.bulk.wait_group.read": (1, "before the adding CTA's only piece, which no store precedes"),
        "bar.sync": (1, "before that piece's staging buffer is written, which nobody has read"),
    },
    "stream_k": {"fence.acq_rel.gpu": COUNTED},
    "scales of blocks": HALVES,
    "scales of rows' blocks": HALVES,
    "scales that are exponents": HALVES,
    "scales, one set": {},
    "copies of bytes": {
        "bar.warp.sync": (1, "the GEMM's, as for gather"),
    },
    "in turn": {
        "bar.sync": (2, "turns order for speed, no warpgroup reads what another writes; the last arrival's wait"),
    },
    "D quantized by rows' blocks": {"bar.warp.sync": (1, "as for gather")},
    "D quantized by blocks": {"bar.warp.sync": (1, "as for gather")},
    "quantize by blocks": {},
    "quantize by rows": {},
    "dependent": {
        "griddepcontrol.launch_dependents": PERMISSION,
        "griddepcontrol.wait": (1, "the consumers': what they multiply comes from a producer that has waited"),
    },
    "dependent, all constant": {
        "griddepcontrol.launch_dependents": PERMISSION,
        "griddepcontrol.wait": (1, "the producer's, which loads nothing but constants"),
    },
}  # fmt: skip
LATER = {"wgmma.fence.sync.aligned": (1, "of later stages, for ptxas (C7520): only WGMMAs wrote the sums")}
OTHERS = ("multistage", "simt", "scale", "quantize")  # have other loops
SURVIVORS = {name: x if name.startswith(OTHERS) else x | LATER for name, x in SURVIVORS.items()}
REMOVED = (*SYNCHRONISATION, "red.", "atom.")
# One of so many deletions is tried, of newer kernels and of others, by HEAD's hash; all with --profile long.
SAMPLED, ROTATED = 12, 9
DEPENDENCE = "griddepcontrol"  # of launches in a row only
ORDERS = [{"policy": "lazy"}, *({"policy": "random", "seed": seed} for seed in (1, 2, 3, 4))]


def plain(name: str):
    """A run of D = A B + C / 2 under options, compared with fp64."""
    spec, (m, n, k), dtype = (CASES | NEWER)[name]
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


def dependent(*constant: str):
    """Two launches that each may start early, behind one that is unknown; these operands are constant.

    D = A B and E = D B, or, where A is constant too, D = A B twice.
    """
    gemm = build(GemmSpec(**SMALL, swap=False, constant=constant, trigger="loads"))
    k = 72 if "a" in constant else 136  # all early loads of a tile, or one that comes behind the wait
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(s, generator=generator).to(torch.bfloat16) for s in ((136, k), (k, 136)))
    d, e = (torch.empty(136, 136, dtype=torch.bfloat16) for _ in range(2))
    of = problem(136, 136, k)
    (step,) = plan(gemm.spec, of).steps
    ptx = kernel_cache.artifact(step.config).ptx
    buffers = [tensor_buffer(x, name) for x, name in zip((a, b, d, e), "ABDE", strict=True)]
    made = [
        gemm.launches(of, {"a": x.data_ptr(), "b": b.data_ptr(), "d": y.data_ptr()})[0]
        for x, y in ((a, d), (a, d) if "a" in constant else (d, e))
    ]
    unwritten = [a, b] if "a" in constant else [b]

    def run(options: Options):
        launches = [
            Launch(ptx, grid=x.grid, block=x.block, cluster=x.cluster, smem_bytes=x.smem, params=list(x.params),
                   buffers=buffers, pdl=True) for x in made
        ]  # fmt: skip
        result = run_sequence(launches, options, constant=unwritten)
        assert_close(d, a, b)
        if "a" not in constant:
            assert_close(e, d, b)
        return result

    return run


def scaled(second, exponents: bool = False, **fields):
    """D of e4m3 with scales of blocks, of an even and of an odd number of blocks of K, within the bounds of fp64."""
    spec = GemmSpec(**BYTES | fields, scale_a=ROWS, scale_b=second, d_dtype="bf16")
    gemm, draw = Gemm(spec), torch.Generator().manual_seed(1)
    calls = []
    for k in (400, 272):
        a, b = (torch.randn(x, k, generator=draw).to(torch.float8_e4m3fn) for x in (130, 72))
        scales = [
            torch.rand(*x, generator=draw) + 0.5
            for x in ((130, -(-k // 128)), (-(-72 // second[1]), -(-k // 128)))
        ]
        if exponents:
            scales[0] = torch.randint(120, 134, scales[0].shape, generator=draw, dtype=torch.uint8)
        named = dict(zip(("scale_a", "scale_b"), scales, strict=True))
        calls.append((a, b.T, named, bound(spec.epilogue, a, b.T, named, {"d": torch.bfloat16})["d"]))

    def run(options: Options) -> Several:
        findings = []
        for a, b, named, limit in calls:
            made = emulator.run(gemm, a, b, options=options, **named)
            assert limit.complaint(made.d) is None
            findings += made.findings
        return Several(findings)

    return run


def copied():
    """D of int8, neither operand along K nor aligned: both are transposed first."""
    gemm = Gemm(GemmSpec(**BYTES, a_load="relayout", b_load="relayout"))
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-128, 128, (301, x), generator=draw, dtype=torch.int8) for x in (131, 75))
    wanted = a.T.long() @ b.long()

    def run(options: Options) -> emulator.Run:
        made = emulator.run(gemm, a.T, b, options=options)
        assert torch.equal(made.d.long(), wanted)
        return made

    return run


def in_turn():
    """D of e4m3 by three consumer warpgroups that issue their WGMMAs one after another, promoting in between."""
    spec = GemmSpec(**BYTES | {"tile": Tile(192, 24, 128), "sms": 1}, promote=128, d_dtype="bf16")
    gemm, draw = Gemm(spec), torch.Generator().manual_seed(1)
    a, b = (torch.randn(x, 400, generator=draw).to(torch.float8_e4m3fn) for x in (200, 40))
    limit = bound(linear_combination(False), a, b.T, {"alpha": 1.0}, {"d": torch.bfloat16})["d"]

    def run(options: Options) -> emulator.Run:
        made = emulator.run(gemm, a, b.T, options=options)
        assert limit.complaint(made.d) is None
        return made

    return run


def quantized_epilogue(kind, tile: Tile):
    """D of several tiles a CTA, quantised by the epilogue, against `quantize` of the exact sums of small integers."""

    def made(acc):
        q = epi.quantize(acc, kind)
        return epi.Output(d=q.values, scale=q.scale)

    gemm = Gemm(GemmSpec(**SMALL | {"tile": tile, "sms": 1}, swap=False, epilogue=epi.define(made)))
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-3, 4, (x, 72), generator=draw).bfloat16() for x in (136, 136))
    wanted = quantize(a.float() @ b.float().T, kind)

    def run(options: Options) -> emulator.Run:
        found = emulator.run(gemm, a, b.T, options=options)
        assert torch.equal(found.d.d.float(), wanted.values.float()) and torch.equal(
            found.d.scale, wanted.scale
        )
        return found

    return run


def quantizing(kind):
    """`quantize` of a matrix and its transpose by the kernels, against torch's operations."""
    x = torch.randn(136, 272, generator=torch.Generator().manual_seed(1)).bfloat16()
    wanted = quantize(x, kind, transposed=True)

    def run(options: Options) -> Several:
        findings = []

        def launched(config, groups, tensors) -> None:
            findings.extend(y for x in on_emulator(config, groups, tensors, options) for y in x.findings)

        found = kernel.quantized_by(launched, x, kind, torch.float8_e4m3fn, None, False, True)
        for one, other in zip(found, wanted, strict=True):
            assert all(torch.equal(y.float(), z.float()) for y, z in zip(one, other, strict=True))
        return Several(findings)

    return run


class Several(NamedTuple):
    """What several runs found."""

    findings: list


RUNS = {
    "fused": fused,
    "scales of blocks": lambda: scaled(SQUARES),
    "scales of rows' blocks": lambda: scaled(ROWS),
    "scales that are exponents": lambda: scaled(SQUARES, exponents=True),
    # of more columns than two sets of partial sums leave registers for
    "scales, one set": lambda: scaled(SQUARES, tile=Tile(64, 96, 128)),
    "copies of bytes": copied,
    "in turn": in_turn,
    "D quantized by rows' blocks": lambda: quantized_epilogue(ROWS, Tile(64, 128, 64)),
    "D quantized by blocks": lambda: quantized_epilogue(SQUARES, Tile(128, 128, 64)),
    "quantize by blocks": lambda: quantizing(SQUARES),
    "quantize by rows": lambda: quantizing("row"),
    "dependent": lambda: dependent("b"),
    "dependent, all constant": lambda: dependent("a", "b"),
}


def is_silent(run, order: dict) -> bool:
    """Whether nothing is found and the result is right."""
    try:
        return not run(Options(races=True, max_seconds=60, **order)).findings
    except (EmulatorError, AssertionError):
        return False


@pytest.mark.sliced
@pytest.mark.parametrize("name", ["scales of blocks", "scales that are exponents"])
def test_scales_are_waited_for_and_released_by_all_lanes(name, monkeypatch):
    """Each wait for a full stage, each meeting of a warp before one lane releases it, and copies that the arrival of
    their threads waits for: the detector, or a wrong D, tells of every one that is missing.
    """
    run, used, parsed = RUNS[name](), [], front.kernel_of
    monkeypatch.setattr(front, "kernel_of", lambda ptx, *entry: (used.append(ptx), parsed(ptx, *entry))[1])
    assert is_silent(run, {})
    (target,) = set(used)
    kernel = parsed(target)
    waits = [i for i, x in enumerate(kernel.code) if x.op.startswith("mbarrier.try_wait")]
    meetings = [i for i, x in enumerate(kernel.code) if x.op.startswith("bar.warp.sync")]
    assert len(waits) > 2 and len(meetings) > 2
    mutants = [without(kernel, i) for i in (*waits[1:], *meetings)]  # the first wait is the producer's
    copied = re.sub(
        r"cp\.async\.mbarrier\.arrive\.noinc\.shared\.b64 ", "mbarrier.arrive.shared.b64 _, ", target
    )
    assert (copied == target) is name.endswith("exponents")
    mutants += [] if copied == target else [parsed(copied)]
    for i, mutant in enumerate(mutants):
        monkeypatch.setattr(front, "kernel_of", lambda ptx, *entry, x=mutant: x)
        assert not all(is_silent(run, order) for order in ORDERS), i


@pytest.mark.sliced
@pytest.mark.parametrize("name", SURVIVORS)
def test_only_listed_deletions_go_unnoticed(name, monkeypatch):
    """The detector, a fault, a deadlock or a wrong D tells of every other one, in each kernel of the run."""
    run = RUNS[name]() if name in RUNS else plain(name)
    assert all(is_silent(run, order) for order in ORDERS[: cases(2, len(ORDERS))])
    used: list[str] = []
    parsed = front.kernel_of
    monkeypatch.setattr(front, "kernel_of", lambda ptx, *entry: (used.append(ptx), parsed(ptx, *entry))[1])
    assert is_silent(run, {})
    survivors: Counter[str] = Counter()
    newer = name in RUNS | NEWER and name != "fused"
    step = cases(SAMPLED if newer else ROTATED, 1)
    first = 0 if newer else seed() % step
    removed = (*REMOVED, DEPENDENCE) if name.startswith("dependent") else REMOVED
    tried = 0
    for target in dict.fromkeys(used):
        kernel = parsed(target)
        places = [i for i, ins in enumerate(kernel.code) if ins.op.startswith(removed)]
        assert places
        places = places[first::step]
        tried += len(places)
        for place in places:
            changed = {target: without(kernel, place)}
            monkeypatch.setattr(
                front, "kernel_of", lambda ptx, *entry, c=changed: c.get(ptx) or parsed(ptx, *entry)
            )
            survivors[kernel.code[place].op] += all(is_silent(run, order) for order in ORDERS)
    assert tried
    listed = Counter({op: count for op, (count, _) in SURVIVORS[name].items()})
    assert survivors <= listed if step > 1 else +survivors == listed
