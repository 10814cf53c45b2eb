# SPDX-License-Identifier: Apache-2.0
"""What the host code launches, recorded without a GPU: grids, parameters and the bytes of its tensor maps."""

import dataclasses
import functools
import math
import struct
import threading
import time
from itertools import product

import pytest

from cutegemm import DType, GemmSpec, Operand, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.compiling import kernel_cache, loader
from cutegemm.config import KernelConfig
from cutegemm.errors import CompileError
from cutegemm.gemm import Gemm, representative
from tests.support.tensor_map import decode

A, B, C, D = 0x10_0000, 0x20_0000, 0x30_0000, 0x40_0000
ADDRESSES = {"a": A, "b": B, "c": C, "d": D}
WORKSPACE = 0x50_0000
M, N, K = 304, 200, 136
TILE = Tile(128, 64, 64)


def places(of):
    """Those of `ADDRESSES` that a problem has: its operands, inputs and outputs."""
    return {
        name: x for name, x in ADDRESSES.items() if name in ("a", "b", *dict(of.inputs), *dict(of.outputs))
    }


def launches(of, **fields):
    """(plan, launches) of a run under a spec with the small tile; addresses not in `ADDRESSES` are made up."""
    spec = GemmSpec(**({"tile": TILE} | fields)) if fields.get("schedule") != "simt" else GemmSpec(**fields)
    gemm = Gemm(spec, of)
    scalars = {"alpha": 2.5} | ({} if of.c is None else {"beta": -3.0})
    return gemm.plan, gemm.launches(of, places(of), workspace=WORKSPACE, **scalars)


def maps(launch):
    """The tensor maps among a launch's parameters, in order."""
    return [decode(x) for x in launch.params if len(x) == 128]


def expected_map(base, operand, unit_rows, extents, box):
    """What a tensor map of an operand must say; `unit_rows` when the row axis has unit stride."""
    row, col, step = operand.strides
    leading = col if unit_rows else row
    size = operand.dtype.bytes
    return {
        "base": base,
        "dtype": operand.dtype.value,
        "dims": (*(extents if unit_rows else extents[::-1]), operand.batch),
        "strides": (leading * size, step * size),
        "box": (*box, 1),
    }


@pytest.mark.sliced
@pytest.mark.parametrize(("majors", "d_major"), list(product(("kn", "kk", "mn", "mk"), "nm")))
def test_tensor_maps_describe_the_operands(majors, d_major):
    """Base, type, extents, strides, box and swizzle of A, B and D are the problem's, whatever the majors."""
    of = problem(M, N, K, majors=majors, d_major=d_major, batch=3)
    p, [launch] = launches(of)
    a, b, d = maps(launch)
    row_a, row_b, row_d = majors[0] == "m", majors[1] == "k", d_major == "m"
    boxes = {box.operand: box.extents for box in p.boxes}
    expected = (
        expected_map(A, of.a, row_a, (M, K), boxes["A"]),
        expected_map(B, of.b, row_b, (K, N), boxes["B"]),
        expected_map(D, of.d, row_d, (M, N), boxes["D"]),
    )
    for got, want in zip((a, b, d), expected, strict=True):
        assert {name: getattr(got, name) for name in want} == want
    assert (a.swizzle, b.swizzle) == tuple(x.swizzle for x in p.config.operands) and d.swizzle == "128B"


@pytest.mark.parametrize("swizzle", ["64B", "32B", "none"])
def test_tensor_maps_have_the_planned_swizzle(swizzle):
    """The swizzle of A and B is the spec's, and a box is at most as wide as its span."""
    _, [launch] = launches(problem(M, N, K), swizzle=swizzle)
    span = {"64B": 64, "32B": 32, "none": 16}[swizzle]
    for found in maps(launch)[:2]:
        assert found.swizzle == swizzle
        assert found.box[0] * 2 == span if swizzle != "none" else found.box[0] * 2 >= span


def test_broadcast_operands_have_one_batch():
    """The tensor map of an operand that serves every batch ends after one; D's has them all."""
    of = problem(M, N, K, batch=5)
    of = dataclasses.replace(of, a=dataclasses.replace(of.a, batch=1))
    _, [launch] = launches(of)
    assert [x.dims[2] for x in maps(launch)] == [1, 5, 5]


def test_large_strides_keep_their_upper_bits():
    """Strides beyond 2**32 bytes reach the tensor map whole."""
    of = problem(M, N, K, batch=2)
    step = 3 << 33  # elements
    of = dataclasses.replace(of, a=dataclasses.replace(of.a, strides=(K, 1, step)))
    _, [launch] = launches(of)
    assert maps(launch)[0].strides == (2 * K, 2 * step)


def test_multicast_boxes_are_slices():
    """In a cluster of two along M each CTA loads all of its A and half of the B that both need."""
    of = problem(M, N, K)
    p, [launch] = launches(of, tile=Tile(128, 128, 64), cluster=(2, 1))
    for found, planned, share in zip(maps(launch), p.boxes, (128 * 64, 128 * 64 // 2, 64 * 64), strict=True):
        assert found.box[:2] == planned.extents and math.prod(planned.extents) * planned.count == share
    assert launch.cluster == (2, 1, 1) and launch.grid == (p.clusters * 2, 1, 1)


@pytest.mark.sliced
@pytest.mark.parametrize(
    "fields",
    [
        {}, {"cluster": (2, 2), "tile": Tile(128, 128, 64)}, {"scheduler": "per_tile"}, {"sms": 3},
        {"schedule": "multistage"}, {"schedule": "simt"}, {"raster": ("n", 3)},
    ],
    ids=str,
)  # fmt: skip
def test_launch_geometry_is_the_plans(fields):
    """Grid, block, cluster and shared memory of the launch are those planned.

    Only clusters of several CTAs are launched as such: those of one would lie in different GPCs.
    """
    p, [launch] = launches(problem(1000, 904, K), **fields)
    size = getattr(p.config, "cluster_size", 1)
    assert launch.grid == (p.clusters * size, 1, 1)
    assert launch.block == (p.config.threads, 1, 1)
    assert launch.cluster == (size, 1, 1) and launch.clustered == (size > 1)
    if "schedule" not in fields or fields["schedule"] == "multistage":
        assert launch.smem == p.smem_bytes


def numbers(launch, code):
    """The parameters of four bytes, as a struct code reads them."""
    return [struct.unpack(code, x)[0] for x in launch.params if len(x) == 4]


def test_shapes_and_scalars_reach_the_kernel():
    """m, n, k, the batch, alpha, beta and the schedule are parameters, not constants."""
    p, [launch] = launches(problem(M, N, K, c_dtype="bf16"))
    assert numbers(launch, "<i")[:4] == [M, N, K, 1]
    assert 2.5 in numbers(launch, "<f") and -3.0 in numbers(launch, "<f")
    assert numbers(launch, "<i")[-5:] == [p.raster[1], p.clusters, *p.parts]
    assert p.parts == (19, 4, 3 * 4 * 8)  # 16 rows, 64 columns, 8 warps of 3 x 4 tiles


def test_a_misaligned_operand_is_copied_first():
    """The re-layout reads the operand and writes the workspace, from which the GEMM's tensor map reads."""
    of = problem(M, N, K)
    of = dataclasses.replace(of, a=dataclasses.replace(of.a, strides=(K + 1, 1, 0)))
    p, (copy, gemm) = launches(of, a_load="relayout")
    (step,) = p.steps[0].copies
    addresses = [x for x in (int.from_bytes(x, "little") for x in copy.params if len(x) == 8)]
    assert {A, WORKSPACE + step.offset} <= set(addresses)
    a = maps(gemm)[0]
    assert a.base == WORKSPACE + step.offset
    assert a.strides[0] == step.target.strides[0] * 2 and a.dims[:2] == (K, M)


@epi.define
def FUSED(acc, *, bias: epi.Row, gain: epi.Col, c: epi.Matrix, scale: epi.Scalar, seed: epi.Integer):  # noqa: N802
    """Every kind of input, two matrices, and reductions of every axis, one of them partial."""
    h = epi.where(epi.random(seed, seed) < 0.5, acc * scale + bias, acc * gain)
    return epi.Output(
        d=h + c,
        pre=epi.Store(h, dtype="fp32", major="m"),
        rows=epi.Sum(h, axis=1),
        top=epi.Max(h, axis=0),
        norm=epi.LogSumExp(h),
        part=epi.Sum(c, axis=1, partial=True),
    )


PLACES = ADDRESSES | {
    name: 0x100_0000 + 0x10_0000 * i
    for i, name in enumerate(("bias", "gain", "pre", "rows", "top", "norm", "part", "scale"))
}


def addresses(launch):
    """The parameters of eight bytes, and the words of the tuples among the longer ones."""
    return {
        x for p in launch.params if len(p) % 8 == 0 and len(p) != 128 for (x,) in struct.iter_unpack("<Q", p)
    }


@pytest.mark.sliced
@pytest.mark.parametrize("fields", [{}, {"schedule": "multistage"}, {"schedule": "simt"}], ids=str)
def test_a_fused_run_launches_the_gemm_and_each_finish(fields):
    """One launch per finished reduction follows, none for a partial one; each reads what the GEMM leaves for it."""
    of = dataclasses.replace(problem(M, N, K, epilogue=FUSED), device_scalars=("scale",))
    spec = GemmSpec(epilogue=FUSED, **({"tile": TILE} | fields if "simt" not in fields.values() else fields))
    gemm = Gemm(spec, of)
    p = gemm.plan
    product, *finishes = gemm.launches(of, PLACES, WORKSPACE, seed=77)
    assert [x.name for x in p.steps] == ["gemm", "finish rows", "finish top", "finish norm"]
    assert len(finishes) == 3
    offsets = [step.offset for step in p.steps[1:]]
    assert p.partials == (*offsets, None)
    loaded = {"a", "b", "c", "d", "pre"} if isinstance(p.config, KernelConfig) else set()
    read = {PLACES[x] for x in ("bias", "gain", "part", "scale", *({"a", "b", "c", "d", "pre"} - loaded))}
    assert read | {WORKSPACE + x for x in offsets} <= addresses(product)
    assert not {PLACES[x] for x in ("rows", "top", "norm")} & addresses(product)
    assert 77 in numbers(product, "<i")
    for step, launch in zip(p.steps[1:], finishes, strict=True):
        assert addresses(launch) == {WORKSPACE + step.offset, PLACES[step.output]}
        assert numbers(launch, "<i") == [step.parts, step.results]


@pytest.mark.sliced
@pytest.mark.parametrize(("c_major", "pre_major"), [("n", "m"), ("m", "n")])
def test_tensor_maps_of_inputs_and_outputs(c_major, pre_major):
    """Matrix inputs and every output have a map of their own, whose box is a piece of one warpgroup."""
    of = problem(M, N, K, epilogue=FUSED, batch=2, input_dtype="fp16", d_major=c_major)
    inputs = {name: dataclasses.replace(x, batch=1) if name == "c" else x for name, x in of.inputs}
    pre = Operand(
        dtype=DType.FP32,
        rows=M,
        cols=N,
        strides=(N, 1, M * N) if pre_major == "n" else (1, M, M * N),
        batch=2,
    )
    of = dataclasses.replace(of, inputs=tuple(inputs.items()), outputs=(("d", of.d), ("pre", pre)))
    gemm = Gemm(GemmSpec(tile=TILE, epilogue=FUSED), of)
    product, *_ = gemm.launches(of, {x: y for x, y in PLACES.items() if x != "scale"}, WORKSPACE)
    boxes = {box.operand: box.extents for box in gemm.plan.boxes}
    found = {x.base: x for x in maps(product)}
    assert gemm.plan.config.epi_n == 32  # fp32 pre: 128 bytes
    assert len(found) == 5
    for name, operand, major in (("c", of.c, c_major), ("d", of.d, c_major), ("pre", pre, pre_major)):
        shown = name.upper() if name != "pre" else name
        assert boxes[shown][0] * operand.dtype.bytes <= 128 and math.prod(boxes[shown]) <= 64 * 32
        want = expected_map(PLACES[name], operand, major == "m", (M, N), boxes[shown])
        assert {key: getattr(found[PLACES[name]], key) for key in want} == want


def gated(layout, majors):
    """(plan, launches) of a product of gate and up."""

    @epi.define(gated=layout)
    def pair(gate, up):
        return gate * up

    of = problem(M, 2 * N, K, epilogue=pair, majors=majors)
    gemm = Gemm(GemmSpec(tile=TILE, epilogue=pair, b_load="auto" if layout == "halves" else "relayout"), of)
    return gemm.plan, gemm.launches(of, places(of), WORKSPACE)


@pytest.mark.parametrize("majors", ["kn", "kk"])
def test_a_gated_pair_has_one_map_of_both_halves(majors):
    """B's tensor map is of one half, with the step to the other as a mode of its own."""
    p, (launch,) = gated("halves", majors)
    _, b, d = maps(launch)
    gate = N if majors == "kn" else K * N
    assert p.gate == gate and b.base == B
    steps = dict(zip(b.dims[2:], b.strides[1:], strict=True))
    assert b.dims[:2] == ((N, K) if majors == "kn" else (K, N)) and b.strides[0] == 2 * (
        2 * N if majors == "kn" else K
    )
    assert steps[2] == 2 * gate and d.dims[:2] == (N, M)
    assert numbers(launch, "<i")[:2] == [M, N]


@pytest.mark.parametrize("majors", ["kn", "kk"])
def test_an_interleaved_pair_is_copied_half_by_half(majors):
    """One re-layout reads from B and from its second column, and fills copies one gate apart."""
    p, (launch, product) = gated("interleaved", majors)
    assert [x.name for x in p.steps] == ["relayout b", "gemm"]
    first, second = p.steps[0].copies
    starts = (B, B + (2 if majors == "kn" else 2 * K))
    for copy, start in zip((first, second), starts, strict=True):
        assert {start, WORKSPACE + copy.offset} <= addresses(launch)
    assert 2 * p.gate == second.offset - first.offset
    b = maps(product)[1]
    assert b.base == WORKSPACE and dict(zip(b.dims[2:], b.strides[1:], strict=True))[2] == 2 * p.gate


def test_an_empty_problem_launches_nothing():
    """M = 0 gives no launches."""
    assert Gemm(GemmSpec(), representative(GemmSpec())).launches(problem(0, 5, 5)) == []


def test_a_changed_object_is_refused():
    """An object without the entry point is refused, not run."""
    good = kernel_cache.artifact(Gemm(GemmSpec(tile=TILE), problem(M, N, K)).plan.config)
    with pytest.raises(CompileError, match="no entry point __tvm_ffi_gemm"):
        loader.recorder(good.obj.replace(b"__tvm_ffi_gemm", b"__tvm_ffi_mmeg"), "k", [])


@pytest.mark.parametrize(
    "damage",
    [
        lambda obj: b"",
        lambda obj: b"not an object",
        lambda obj: b"\0" + obj[1:],
        lambda obj: obj[: len(obj) // 2],
        lambda obj: obj[:16] + b"\3" + obj[17:],
        lambda obj: b"\x7fELF" + b"\0" * 200,
    ],
)
def test_what_is_no_object_is_refused(damage):
    """Bytes that are no whole relocatable object are refused with an error; linking them would end the process."""
    good = kernel_cache.artifact(Gemm(GemmSpec(tile=TILE), problem(M, N, K)).plan.config).obj
    with pytest.raises(CompileError, match="^obj='.* bytes': must be a whole ELF-64 relocatable object$"):
        loader.recorder(damage(good), "k", [])


def test_threads_that_record_at_once_share_one_recorder(monkeypatch):
    """Its callbacks are defined once: those of a second definition would be freed while objects still call them."""
    defined = []

    @functools.cache
    def define():
        defined.append(threading.get_ident())
        time.sleep(0.05)

    monkeypatch.setattr(loader, "_define_recorder_symbols", define)
    monkeypatch.setattr(loader, "_link", lambda obj: None)
    threads = [threading.Thread(target=loader.recorder, args=(b"", "kernel", [])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(defined) == 1
