# SPDX-License-Identifier: Apache-2.0
"""Fused epilogues in the compiled kernels, against the torch reference within a derived bound.

Every test runs the kernels on the emulator and, where there is one, on a Hopper GPU.
"""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm
import cutegemm.emulator
from cutegemm import GemmSpec, Tile
from cutegemm import epilogue as epi
from cutegemm.gemm import Gemm
from tests.support.epilogues import assert_outputs_close, graphs
from tests.support.fused_kernels import (
    BF16,
    FIELDS,
    FIELDS_SHAPE,
    FP32,
    LIBRARY,
    READY,
    SCHEDULES,
    SHAPES,
    everything,
    gemm_of,
    operands,
    results,
)
from tests.support.memory import Layout
from tests.support.profile import cases
from tests.support.watched import RACES


@pytest.fixture(params=["emulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request):
    """Where the kernels run."""
    return request.param


def check(gemm, shape, backend, batch=None, dtypes=(BF16, FP32), seed=0):
    """Run and compare with the reference."""
    graph = gemm.spec.epilogue
    a, b, inputs = operands(graph, shape, backend, batch, dtypes, seed)
    got = gemm.run(a, b, backend=backend, **inputs)
    assert_outputs_close(results(got), graph, a, b, inputs)
    return got


# of these odd extents run on the emulator, too: a kernel each
ODD = list(LIBRARY)[:: cases(len(SCHEDULES), 1)]


def ready():
    """Epilogues of the library by schedule: those of the profile on the emulator, all of them on a GPU."""
    for name, schedule in itertools.product(LIBRARY, SCHEDULES):
        if (name, schedule) in READY:
            yield pytest.param(name, schedule, "emulator", id=f"fused {name}, {schedule}")
        yield pytest.param(name, schedule, "gpu", id=f"fused {name}, {schedule}, gpu", marks=pytest.mark.gpu)


@pytest.mark.sliced
@pytest.mark.parametrize(("name", "schedule", "backend"), list(ready()))
def test_every_ready_epilogue_on_every_schedule(name, schedule, backend):
    """The library's epilogues give what torch gives, at aligned and at odd extents."""
    gemm = gemm_of(LIBRARY[name], schedule)
    odd = backend == "gpu" or (schedule == "cooperative" and name in ODD)
    for shape in SHAPES if odd else SHAPES[:1]:
        check(gemm, shape, backend)


@pytest.mark.gpu
@settings(max_examples=40)
@given(graph=graphs(gated="any"), schedule=st.sampled_from(sorted(SCHEDULES)), shape=st.sampled_from(SHAPES))
def test_random_graphs_on_the_gpu(graph, schedule, shape):
    """Whatever expression is drawn, the kernel computes it."""
    check(gemm_of(graph, schedule), shape, "gpu")


@settings(max_examples=6)
@given(graph=graphs(gated="any"), schedule=st.sampled_from(sorted(SCHEDULES)), shape=st.sampled_from(SHAPES))
def test_random_graphs(graph, schedule, shape):
    """Whatever expression is drawn, the kernel computes it."""
    check(gemm_of(graph, schedule), shape, "emulator")


@epi.define
def _tiny(acc, *, row: epi.Row):
    """erf of values around 1e-5, beside a sum in fp32."""
    t = epi.exp(epi.floor(acc - row) - 12.0)
    return epi.Output(d=epi.erf(t), sums=epi.Sum(t, axis=1))


def test_tiny_values_of_erf_beside_a_sum():
    """With a sum in fp32 the kernel takes the erf whose error is absolute."""
    check(gemm_of(_tiny, "cooperative"), SHAPES[0], "emulator")


def around():
    """Schedules by backend; `tests/emulator/test_drawn.py` draws shapes for the others on the emulator."""
    for schedule in SCHEDULES:
        if schedule in cases(("multistage", "simt"), SCHEDULES):
            yield pytest.param(schedule, "emulator", id=f"emulator-{schedule}")
        yield pytest.param(schedule, "gpu", id=f"gpu-{schedule}", marks=pytest.mark.gpu)


@pytest.mark.sliced
@pytest.mark.parametrize(("schedule", "backend"), list(around()))
def test_batches_and_shapes_around_the_tile(schedule, backend):
    """Several outputs and reductions at once, batched or not, at the tile's edges."""
    gemm = gemm_of(everything, schedule)
    for shape, batch in (((65, 63, 33), None), ((128, 72, 64), 2), ((1, 8, 8), None)):
        check(gemm, shape, backend, batch)


def ways():
    """Ways in and out of a kernel by backend."""
    for name in FIELDS:
        yield pytest.param(name, "emulator", id=f"fused {name}")
        yield pytest.param(name, "gpu", id=f"fused {name}, gpu", marks=pytest.mark.gpu)


@pytest.mark.sliced
@pytest.mark.parametrize(("name", "backend"), list(ways()))
def test_every_way_in_and_out(name, backend):
    """Stores, clusters, passes, buffers and schedulers do not change the results."""
    check(gemm_of(everything, **FIELDS[name]), FIELDS_SHAPE, backend)


@pytest.mark.sliced
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("major", ["n", "k"])
def test_gated_pairs_of_either_major(layout, major, backend):
    """Both layouts of gate and up, whichever axis of B has unit stride; odd widths too."""
    graph = epi.swiglu(layout)
    gemm = gemm_of(graph)
    for shape in ((70, 72, 40), (70, 37, 40)):
        a, b, inputs = operands(graph, shape, backend)
        b = b if major == "n" else b.t().contiguous().t()
        got = gemm.run(a, b, backend=backend, **inputs)
        assert_outputs_close(results(got), graph, a, b, inputs)


@pytest.mark.sliced
@pytest.mark.parametrize("load", ["gather", "relayout"])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_gated_pairs_without_tma(load, layout, backend):
    """Both halves of B are gathered, or copied into workspace one behind the other, batches included."""
    graph = epi.swiglu(layout)
    gemm = gemm_of(graph, b_load=load)
    for batch in (None, 2):
        check(gemm, (70, 37, 40), backend, batch)


def test_not_a_number_and_infinity_pass_through(backend):
    """They reach the outputs that torch lets them reach, and no other row or column."""
    graph = epi.bias_act_residual("relu")
    gemm = gemm_of(graph)
    a, b, inputs = operands(graph, (70, 88, 40), backend)
    a[5, 9], b[11, 13], inputs["bias"][17], inputs["residual"][40, 3] = (
        torch.nan,
        torch.inf,
        -torch.inf,
        torch.nan,
    )
    got = gemm.run(a, b, backend=backend, **inputs)
    expected = torch.relu(a.float() @ b.float() + inputs["bias"].float()) + inputs["residual"].float()
    assert torch.equal(got.isnan(), expected.isnan()) and torch.equal(got.isinf(), expected.isinf())
    assert int(got.isnan().sum()) >= 88


@epi.define
def log_sum_exps(acc, *, residual: epi.Matrix):
    """Log-sum-exps of each row, of each column, and of all elements."""
    h = acc + residual
    of = {f"axis_{axis}": epi.LogSumExp(h, axis=axis) for axis in (0, 1, None)}
    return epi.Output(d=h, **of)


@pytest.mark.sliced
@pytest.mark.parametrize("schedule", ["cooperative", "simt"])
def test_infinities_have_the_log_sum_exp_that_torch_gives(schedule, backend):
    """Rows and columns of -inf alone, an infinite element, and not a number beside them."""
    gemm = gemm_of(log_sum_exps, schedule)
    a, b, inputs = operands(log_sum_exps, (70, 88, 40), backend, dtypes=(FP32,))
    residual = inputs["residual"]
    residual[5], residual[:, 9], residual[64:, :] = -torch.inf, -torch.inf, -torch.inf
    for m, n, value in ((3, 4, -torch.inf), (40, 17, torch.inf), (66, 80, torch.nan)):
        residual[m, n] = value
        got = gemm.run(a, b, backend=backend, **inputs)
        h = a.float() @ b.float() + residual
        for axis in (0, 1, None):
            expected = h.logsumexp((0, 1) if axis is None else axis)
            found = getattr(got, f"axis_{axis}")
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@epi.define
def mask(acc, *, seed: epi.Integer, offset: epi.Integer):
    """The random numbers themselves."""
    return acc * 0.0 + epi.random(seed, offset)


def test_dropout_depends_on_seed_offset_row_and_column_alone(backend):
    """The same numbers from every schedule and tile, others for another seed or offset; even in [0, 1)."""
    a, b, _ = operands(mask, (150, 136, 40), backend)
    runs = [
        gemm_of(mask, schedule, d_dtype="fp32").run(a, b, seed=7, offset=3, backend=backend)
        for schedule in SCHEDULES
    ]
    for other in runs[1:]:
        assert torch.equal(runs[0], other)
    assert not torch.equal(
        runs[0], gemm_of(mask, d_dtype="fp32").run(a, b, seed=8, offset=3, backend=backend)
    )
    assert not torch.equal(
        runs[0], gemm_of(mask, d_dtype="fp32").run(a, b, seed=7, offset=4, backend=backend)
    )
    assert 0 <= runs[0].min() and runs[0].max() < 1 and abs(runs[0].mean().item() - 0.5) < 0.01
    assert len(runs[0].unique()) > 0.99 * runs[0].numel()


@pytest.mark.sliced
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_transposed_graph_gives_the_same_random_numbers(schedule, backend):
    """On B^T A^T, its result transposed: an element has the number of its place in D."""
    a, b, _ = operands(mask, (150, 136, 40), backend)
    plain, swapped = gemm_of(mask, d_dtype="fp32"), gemm_of(mask.transposed(), schedule, d_dtype="fp32")
    expected = plain.run(a, b, seed=7, offset=3, backend=backend)
    assert torch.equal(swapped.run(b.mT, a.mT, seed=7, offset=3, backend=backend).mT, expected)


def test_reductions_are_reproducible(backend):
    """Two runs agree to the last bit."""
    gemm = gemm_of(everything)
    a, b, inputs = operands(everything, (200, 136, 72), backend)
    first, second = (results(gemm.run(a, b, backend=backend, **inputs)) for _ in range(2))
    for name, x in first.items():
        assert torch.equal(x.float(), second[name].float()), name


@pytest.mark.parametrize("shape", [(0, 8, 8), (5, 0, 8)])
def test_reductions_over_nothing(shape, backend):
    """They have their neutral value."""
    graph = dataclasses.replace(everything, outputs=tuple(x for x in everything.outputs if not x.partial))
    check(gemm_of(graph), shape, backend)


@epi.define
def shifted(acc, *, bias: epi.Row):
    """Little to compile: without K the kernel has the widest tile of the CUDA cores."""
    h = acc + bias
    return epi.Output(d=h, rows=epi.Sum(h, axis=1), top=epi.AbsMax(h))


def test_without_k_the_product_is_zero(backend):
    """Results and reductions are those of the epilogue of zeros."""
    check(gemm_of(shifted), (5, 8, 0), backend)


def test_outputs_given_in_place_and_strided(backend):
    """Outputs go where they are told, residual and D may be one tensor, and nothing else is written."""
    graph = epi.bias_act_residual("gelu")
    gemm = gemm_of(graph)
    a, b, inputs = operands(graph, (70, 88, 40), backend, dtypes=(BF16,))
    expected = gemm.run(a, b, backend=backend, **inputs)
    odd = Layout(aligned=False).make((70, 88), BF16, str(a.device))
    assert gemm.run(a, b, out=odd.view, backend=backend, **inputs) is odd.view
    assert torch.equal(odd.view, expected) and odd.untouched()
    # columns of every second row of memory, of which a warp stores 64 elements in two steps
    apart = torch.zeros(88, 140, dtype=BF16, device=a.device)[:, ::2].T
    assert torch.equal(gemm.run(a, b, out=apart, backend=backend, **inputs), expected)
    same = inputs["residual"]
    gemm.run(a, b, out=same, backend=backend, **inputs)
    assert torch.equal(same, expected)


def test_a_scalar_may_lie_in_device_memory(backend):
    """A 0-d tensor gives what its number gives, and is read when the kernel runs."""
    graph = epi.scaled("tensor")
    gemm = gemm_of(graph)
    a, b, inputs = operands(graph, (70, 88, 40), backend)
    name = next(iter(graph.numbers))
    number = torch.tensor(0.75, device=a.device)
    for value in (0.75, -2.0):
        number.fill_(value)
        assert torch.equal(
            gemm.run(a, b, backend=backend, **(inputs | {name: number})),
            gemm.run(a, b, backend=backend, **(inputs | {name: value})),
        )


# Tiles of which whole warpgroups, subtiles or threads lie outside a ragged output.
IN_PLACE = {
    "cooperative": ("n", {"tile": Tile(128, 64, 32)}),
    "pingpong": ("m", {"tile": Tile(64, 128, 32)}),
    "multistage": ("n", {"tile": Tile(128, 64, 32)}),
    "simt": ("m", {}),
}


@pytest.mark.sliced
@pytest.mark.parametrize("schedule", IN_PLACE)
def test_d_may_lie_over_c_without_a_race(schedule):
    """At ragged M and N no thread reads an element of C that another thread overwrites; the result is right."""
    d_major, fields = IN_PLACE[schedule]
    generator = torch.Generator().manual_seed(1)
    m, n, k = 131, 131, 24
    a, b, c = (torch.randn(shape, generator=generator).to(BF16) for shape in ((m, k), (k, n), (m, n)))
    c = c if d_major == "n" else c.t().contiguous().t()
    expected = 0.5 * (a.float() @ b.float()) + 2.0 * c.float()
    gemm = Gemm(GemmSpec(schedule=schedule, **fields))
    run = cutegemm.emulator.run(gemm, a, b, c, alpha=0.5, beta=2.0, out=c, options=RACES)
    assert run.races == [] and run.d is c
    torch.testing.assert_close(c.float(), expected, rtol=1e-2, atol=1e-2)
