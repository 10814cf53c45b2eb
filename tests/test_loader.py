# SPDX-License-Identifier: Apache-2.0
"""What the host code launches, recorded without a GPU: grids, parameters and the bytes of its tensor maps."""

import dataclasses
import math
import struct
from itertools import product

import pytest

from cutegemm import GemmSpec, Tile, cache, loader, problem
from cutegemm.build import Gemm, representative
from cutegemm.errors import CompileError
from tests.support.tensor_map import decode

A, B, C, D = ADDRESSES = (0x10_0000, 0x20_0000, 0x30_0000, 0x40_0000)
WORKSPACE = 0x50_0000
M, N, K = 304, 200, 136
TILE = Tile(128, 64, 64)


def launches(of, **fields):
    """(plan, launches) of a run under a spec with the small tile."""
    spec = GemmSpec(**({"tile": TILE} | fields)) if fields.get("schedule") != "simt" else GemmSpec(**fields)
    gemm = Gemm(spec, of)
    return gemm.plan, gemm.launches(of, ADDRESSES, alpha=2.5, beta=-3.0, workspace=WORKSPACE)


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
    assert (a.swizzle, b.swizzle) == p.config.swizzle and d.swizzle == "128B"


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


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"cluster": (2, 2), "tile": Tile(128, 128, 64)}, {"scheduler": "per_tile"}, {"sms": 3},
        {"schedule": "multistage"}, {"schedule": "simt"}, {"raster": ("n", 3)},
    ],
    ids=str,
)  # fmt: skip
def test_launch_geometry_is_the_plans(fields):
    """Grid, block, cluster and shared memory of the launch are those planned."""
    p, [launch] = launches(problem(1000, 904, K), **fields)
    size = getattr(p.config, "cluster_size", 1)
    assert launch.grid == (p.clusters * size, 1, 1)
    assert launch.block == (p.config.threads, 1, 1)
    assert launch.cluster == (size, 1, 1)
    if "schedule" not in fields or fields["schedule"] == "multistage":
        assert launch.smem == p.smem_bytes


def numbers(launch, code):
    """The parameters of four bytes, as a struct code reads them."""
    return [struct.unpack(code, x)[0] for x in launch.params if len(x) == 4]


def test_shapes_and_scalars_reach_the_kernel():
    """m, n, k, the batch, alpha, beta and the walk are parameters, not constants."""
    p, [launch] = launches(problem(M, N, K, c_dtype="bf16"))
    assert numbers(launch, "<i")[:4] == [M, N, K, 1]
    assert 2.5 in numbers(launch, "<f") and -3.0 in numbers(launch, "<f")
    assert numbers(launch, "<i")[-2:] == [p.raster[1], p.clusters]


def test_a_misaligned_operand_is_copied_first():
    """The re-layout reads the operand and writes the workspace, from which the GEMM's tensor map reads."""
    of = problem(M, N, K)
    of = dataclasses.replace(of, a=dataclasses.replace(of.a, strides=(K + 1, 1, 0)))
    p, (copy, gemm) = launches(of, a_load="relayout")
    step = p.steps[0]
    addresses = [x for x in (int.from_bytes(x, "little") for x in copy.params if len(x) == 8)]
    assert {A, WORKSPACE + step.offset} <= set(addresses)
    a = maps(gemm)[0]
    assert a.base == WORKSPACE + step.offset
    assert a.strides[0] == step.target.strides[0] * 2 and a.dims[:2] == (K, M)


def test_an_empty_problem_launches_nothing():
    """M = 0 gives no launches."""
    assert Gemm(GemmSpec(), representative(GemmSpec())).launches(problem(0, 5, 5)) == []


def test_a_changed_object_is_refused():
    """An object without the entry point is refused, not run."""
    good = cache.artifact(Gemm(GemmSpec(tile=TILE), problem(M, N, K)).plan.config)
    with pytest.raises(CompileError, match="no entry point __tvm_ffi_gemm"):
        loader.recorder(good.obj.replace(b"__tvm_ffi_gemm", b"__tvm_ffi_mmeg"), "k", [])
