# SPDX-License-Identifier: Apache-2.0
"""Units one by one: tensor maps and boxes, cp.async, wgmma in every major and swizzle, mma, clusters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.emulator import Buffer, Launch, Module, Options, launch
from cutegemm.emulator.state.tensors import TensorMap, decode, encode
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned, exact_fp8, run
from tests.support.emulator_units import TMA_KERNEL, run_wgmma

POLICIES = [{}, {"policy": "lazy"}, {"policy": "random", "seed": 2}]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_tensor_maps_survive_packing(data):
    """decode inverts encode for every rank, type, swizzle, extent and stride up to 2^40."""
    rank = data.draw(st.integers(1, 5))
    kind, item = data.draw(st.sampled_from([("bf16", 2), ("f16", 2), ("f32", 4), ("u8", 1)]))
    swizzle = data.draw(st.integers(0, 3))
    inner = data.draw(st.integers(1, (8, 2, 4, 8)[swizzle])) * 16 // item
    several = lambda count, low, high: tuple(data.draw(st.integers(low, high)) for _ in range(count))
    dims, box = several(rank, 1, 2**32), (inner, *several(rank - 1, 1, 256))
    strides = tuple(16 * s for s in several(rank - 1, 1, 2**36 - 1))
    base = data.draw(st.integers(0, 2**40)) * 16
    tf32 = kind == "f32" and data.draw(st.booleans())
    made = TensorMap(base, kind, dims, strides, box, swizzle, tf32)
    assert decode(encode(made)) == made


def load_box(
    source: np.ndarray, box: tuple[int, int], swizzle: int, at: tuple[int, int], **options
) -> np.ndarray:
    """Bytes of shared memory after a tensor load of 16-bit elements."""
    rows, columns = source.shape
    tensor = TensorMap(source.ctypes.data, "u16", (columns, rows), (columns * 2,), box, swizzle)
    out = aligned(tensor.box_bytes, np.uint8, 0xEE)
    number = lambda x: int(x % 2**32).to_bytes(4, "little")  # noqa: E731
    params = [
        encode(tensor),
        out.ctypes.data.to_bytes(8, "little"),
        number(at[0]),
        number(at[1]),
        number(tensor.box_bytes),
    ]
    buffers = [Buffer(x.ctypes.data, x.nbytes) for x in (source, out)]
    what = Launch(grid=(1, 1, 1), block=(64, 1, 1), smem_bytes=40960, params=params, buffers=buffers)
    launch(Module.parse(TMA_KERNEL), what, Options(races=True, **options))
    return out


@pytest.mark.parametrize("options", POLICIES)
@pytest.mark.parametrize("swizzle, inner", [(0, 64), (0, 8), (1, 16), (2, 32), (3, 64)])
@pytest.mark.parametrize("at", [(0, 0), (32, 3), (-8, -2), (56, 20), (200, 0)])
def test_tensor_load_swizzles_and_fills(swizzle, inner, at, options):
    """Rows land in order, 16-byte chunk j of row r at j ^ (row bits), outside reads zero (PTX ISA 5.5.6, 9.7.9.27)."""
    source = aligned(24 * 80, np.uint16).reshape(24, 80)
    source[...] = np.arange(1, 24 * 80 + 1).reshape(24, 80)
    got = load_box(source, (inner, 16), swizzle, at, **options).view(np.uint16)
    for r in range(16):
        for c in range(inner):
            row, column = at[1] + r, at[0] + c
            want = source[row, column] if 0 <= row < 24 and 0 <= column < 80 else 0
            byte = r * inner * 2 + c * 2
            line = byte // 128  # the swizzle xors 16-byte chunk bits with the 128-byte line number
            mask = (0, 1, 3, 7)[swizzle]
            byte ^= (line & mask) << 4
            assert got[byte // 2] == want, (r, c)


def test_a_box_that_starts_off_a_16_byte_boundary_is_an_illegal_instruction():
    """Measured on an H200: the first byte of a box, coordinates included, must be 16-byte aligned."""
    source = aligned(24 * 80, np.uint16).reshape(24, 80)
    with pytest.raises(EmulatorError, match="illegal instruction: a box starts at element 4 of u16"):
        load_box(source, (64, 16), 3, (4, 0))


def test_a_tensor_map_outside_every_buffer_is_refused():
    """A map whose last byte lies past its buffer is caught before any copy."""
    source = aligned(24 * 80, np.uint16).reshape(24, 80)
    fake = TensorMap(source.ctypes.data, "u16", (80, 25), (160,), (64, 16), 3)
    params = [encode(fake), bytes(8), bytes(4), bytes(4), (2048).to_bytes(4, "little")]
    with pytest.raises(EmulatorError, match="tensor map covers 4000 bytes"):
        launch(
            Module.parse(TMA_KERNEL),
            Launch(
                grid=(1, 1, 1),
                block=(64, 1, 1),
                smem_bytes=40960,
                params=params,
                buffers=[Buffer(source.ctypes.data, source.nbytes)],
            ),
        )


@pytest.mark.parametrize("first,fine", [(3, True), (11, False)])
def test_a_tensor_map_may_begin_in_the_word_of_a_buffers_first_byte(first, fine):
    """A matrix may begin anywhere, a map only at multiples of 16 bytes: the bytes between are no access outside."""
    source = aligned(24 * 80, np.uint16)
    source[...] = np.arange(1, 24 * 80 + 1)
    fake = TensorMap(source.ctypes.data, "u16", (80, 24), (160,), (64, 16), 3)
    params = [encode(fake), bytes(8), bytes(4), bytes(4), (2048).to_bytes(4, "little")]
    part = source[first:]
    out = aligned(2048, np.uint8)
    params[1] = out.ctypes.data.to_bytes(8, "little")
    buffers = [Buffer(part.ctypes.data, part.nbytes), Buffer(out.ctypes.data, out.nbytes)]
    what = Launch(grid=(1, 1, 1), block=(64, 1, 1), smem_bytes=40960, params=params, buffers=buffers)
    if fine:
        launch(Module.parse(TMA_KERNEL), what)
        assert out.view(np.uint16)[:8].tolist() == source[:8].tolist()
    else:
        with pytest.raises(EmulatorError, match="22 bytes before"):
            launch(Module.parse(TMA_KERNEL), what)


@pytest.mark.parametrize("options", POLICIES)
def test_cp_async_fills_with_zeros_past_its_source_size(options):
    """cp.async.cg of 16 bytes copies src-size of them and zero-fills (PTX ISA 9.7.9.25.3)."""
    data, out = aligned(128, np.uint32), aligned(128, np.uint32)
    data[:] = np.arange(1, 129)
    run(
        """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r1, buf; shl.b32 %r2, %r0, 4;
 add.u32 %r3, %r1, %r2; mad.wide.u32 %rd2, %r0, 16, %rd0; and.b32 %r4, %r0, 3; shl.b32 %r5, %r4, 2;
 cp.async.cg.shared.global [%r3], [%rd2], 16, %r5; cp.async.commit_group; cp.async.wait_group 0;
 ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r3]; mad.wide.u32 %rd3, %r0, 16, %rd1;
 st.global.v4.u32 [%rd3], {%r10, %r11, %r12, %r13};
""",
        [data, out],
        before=".shared .align 16 .b8 buf[512];",
        **options,
    )
    want = data.reshape(32, 4).copy()
    for lane in range(32):
        want[lane, lane % 4 :] = 0
    assert out.tolist() == want.ravel().tolist()


@pytest.mark.parametrize("a_mode, b_mode", [(0, 0), (1, 1), (2, 2), (3, 3), (1, 3), (2, 0)])
@pytest.mark.parametrize("majors", [(False, False), (True, False), (False, True), (True, True)])
def test_wgmma_reads_every_major_and_swizzle(majors, a_mode, b_mode, rng=None):
    """m64n64k16 of fp16 with operands laid out from the canonical layouts (PTX ISA 9.7.16.5.1)."""
    rng = np.random.default_rng(a_mode * 4 + b_mode)
    a, b = (rng.integers(-8, 9, (64, 16)).astype(np.float16) for _ in range(2))
    got = run_wgmma(a, b, "f16.f16", majors, (a_mode, b_mode), 64, policy="lazy")
    assert np.array_equal(got, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("n", [8, 24, 96, 256])
def test_wgmma_widths(n):
    """Every width of N that is a multiple of 8 (PTX ISA 9.7.16.2)."""
    rng = np.random.default_rng(n)
    a, b = rng.integers(-8, 9, (64, 16)).astype(np.float16), rng.integers(-8, 9, (n, 16)).astype(np.float16)
    assert np.array_equal(
        run_wgmma(a, b, "f16.f16", (False, False), (1, 1), n), a.astype(np.float32) @ b.astype(np.float32).T
    )


def test_wgmma_of_tf32_drops_the_low_mantissa_bits():
    """tf32 keeps 10 mantissa bits of its fp32 operands (PTX ISA 5.2.3)."""
    a, b = np.full((64, 8), 1 + 2.0**-12, np.float32), np.full((64, 8), 2.0, np.float32)
    assert set(run_wgmma(a, b, "tf32.tf32", (False, False), (1, 1), 64).ravel().tolist()) == {16.0}


MMA = {  # shape, type -> K
    ("m16n8k16", "f16"): 16,
    ("m16n8k16", "bf16"): 16,
    ("m16n8k8", "f16"): 8,
    ("m16n8k8", "tf32"): 8,
    ("m16n8k4", "tf32"): 4,
    ("m16n8k32", "s8"): 32,
    ("m16n8k16", "u8"): 16,
    ("m16n8k32", "e4m3"): 32,
    ("m16n8k16", "e5m2"): 16,
}


@pytest.mark.parametrize("shape, kind", list(MMA))
def test_mma_sync_follows_the_fragment_layouts(shape, kind):
    """mma.sync.row.col with 32-bit accumulators on fragments written from the ISA's tables (PTX ISA 9.7.15.5)."""
    k = MMA[shape, kind]
    rng = np.random.default_rng(k)
    low = 0 if kind == "u8" else -8
    a, b, c = rng.integers(low, 9, (16, k)), rng.integers(low, 9, (k, 8)), rng.integers(-8, 9, (16, 8))
    per = {"tf32": 1, "f16": 2, "bf16": 2}.get(kind, 4)  # elements in a register
    total, to = ("s32", np.int32) if kind in ("s8", "u8") else ("f32", np.float32)
    fp8 = {"e4m3": (3, 7), "e5m2": (2, 15)}
    if kind in fp8:
        a, b = a // 2, b // 2  # e5m2 has two fraction bits
        patterns = {exact_fp8(p, *fp8[kind]): p for p in range(0xF7) if p & 127 < 0x78}

    def one(v) -> int:
        if kind in fp8:
            return patterns[float(v)] if v else 0
        if per == 4:
            return int(v) & 255
        if kind == "f16":
            return int(np.float16(v).view(np.uint16))
        return int(np.float32(v).view(np.uint32)) >> (16 if kind == "bf16" else 0)

    def pattern(values) -> int:
        return sum(one(v) << 32 // per * i for i, v in enumerate(values))

    a_count, b_count = 16 * k // 32 // per, k * 8 // 32 // per
    words = aligned(32 * (a_count + b_count + 4), np.uint32)
    for t in range(32):
        g, q = t // 4, t % 4
        row = [
            pattern([a[g + 8 * (i % 2), q * per + i // 2 * 4 * per + j] for j in range(per)])
            for i in range(a_count)
        ]
        row += [pattern([b[q * per + i * 4 * per + j, g] for j in range(per)]) for i in range(b_count)]
        row += [int(to(c[g + 8 * (i // 2), 2 * q + i % 2]).view(np.uint32)) for i in range(4)]
        words[t * len(row) : (t + 1) * len(row)] = row
    out = aligned(128, np.float32)
    count = a_count + b_count + 4
    loads = "\n".join(f" ld.global.u32 %r{10 + i}, [%rd2+{4 * i}];" for i in range(count))
    names = [f"%r{10 + i}" for i in range(count)]
    part = lambda x: "{" + ", ".join(x) + "}"  # noqa: E731
    run(
        f"""
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd2, %r0, {4 * count}, %rd0;
{loads}
 mma.sync.aligned.{shape}.row.col.{total}.{kind}.{kind}.{total} {{%f0, %f1, %f2, %f3}}, {part(names[:a_count])},
   {part(names[a_count : a_count + b_count])}, {part(names[-4:])};
 mad.wide.u32 %rd3, %r0, 16, %rd1; st.global.v4.f32 [%rd3], {{%f0, %f1, %f2, %f3}};
""",
        [words, out],
    )
    want = a @ b + c
    for t in range(32):
        for i in range(4):
            assert out.view(to)[4 * t + i] == want[t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2]


@pytest.mark.parametrize("mma, a, start, want", [
    # the products are added first, and their sum to C, rounded to nearest: 2**24 + 3 is a tie
    ("f32.e4m3.e4m3.f32", 0x38, 2.0**24, 2.0**24 + 4),
    ("s32.s8.s8.s32", 0x7F, 2**31 - 2, -(2**31) + 379),
    ("satfinite.s32.s8.s8.s32", 0x7F, 2**31 - 2, 2**31 - 1),
])  # fmt: skip
def test_mma_sync_adds_the_accumulator_as_its_type_does(mma, a, start, want):
    """Three products per element and a large accumulator: fp8 in fp16 as ptxas has it, integers wrap or saturate."""
    kind = np.int32 if "s32" in mma else np.float32
    out, one = aligned(128, kind), 0x383838 if kind is np.float32 else 0x010101
    run(
        f""" mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mad.wide.u32 %rd1, %r0, 16, %rd0; and.b32 %r1, %r0, 3;
 setp.eq.u32 %p0, %r1, 0; selp.b32 %r2, {a * 0x010101}, 0, %p0; mov.b32 %r3, {one}; mov.b32 %r4, 0;
 mov.b32 %r5, {int(kind(start).view(np.uint32))};
 mma.sync.aligned.m16n8k16.row.col.{mma} {{%r6, %r7, %r8, %r9}}, {{%r2, %r2}}, {{%r3}}, {{%r5, %r5, %r5, %r5}};
 st.global.v4.b32 [%rd1], {{%r6, %r7, %r8, %r9}};""",
        [out],
    )
    assert set(out.tolist()) == {want}


@pytest.mark.parametrize("layouts", [("row", "col"), ("row", "row"), ("col", "col")])
def test_wmma_multiplies_tiles_of_either_layout(layouts):
    """wmma.load, .mma and .store of bf16 tiles with leading dimensions (PTX ISA 9.7.15.3)."""
    rng = np.random.default_rng(5)
    a, b = rng.integers(-8, 9, (16, 16)).astype(np.float32), rng.integers(-8, 9, (16, 16)).astype(np.float32)
    stored = [x if layout == "row" else x.T for x, layout in zip((a, b), layouts, strict=True)]
    memory = aligned(2 * 16 * 24, np.uint16).reshape(2, 16, 24)
    for i in range(2):
        memory[i, :, :16] = np.ascontiguousarray(stored[i]).view(np.uint32) >> 16
    out = aligned(16 * 20, np.float32).reshape(16, 20)
    f = ", ".join(f"%f{i}" for i in range(8))
    run(
        f"""
 ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; add.s64 %rd2, %rd0, {16 * 24 * 2};
 wmma.load.a.sync.aligned.{layouts[0]}.m16n16k16.global.bf16 {{%r1, %r2, %r3, %r4}}, [%rd0], 24;
 wmma.load.b.sync.aligned.{layouts[1]}.m16n16k16.global.bf16 {{%r5, %r6, %r7, %r8}}, [%rd2], 24;
{chr(10).join(f" mov.f32 %f{i}, 0f3F800000;" for i in range(8))}
 wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.m16n16k16.f32.bf16.bf16.f32 {{{f}}}, {{%r1, %r2, %r3, %r4}},
   {{%r5, %r6, %r7, %r8}}, {{{f}}};
 wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {{{f}}}, 20;
""",
        [memory.reshape(-1), out.reshape(-1)],
    )
    assert np.array_equal(out[:, :16], a @ b + 1)


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_cluster_barrier_mapa_and_remote_memory(policy):
    """Each CTA of four writes into its neighbour's shared memory, between two cluster barriers (PTX ISA 9.7.13.4)."""
    out = aligned(8, np.uint32)
    run(
        """
 mov.u32 %r0, %cluster_ctarank; ld.param.u64 %rd0, [p0]; mov.u32 %r1, buf; add.u32 %r2, %r0, 1; and.b32 %r3, %r2, 3;
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 mapa.shared::cluster.u32 %r4, %r1, %r3; add.u32 %r5, %r0, 100; st.shared::cluster.u32 [%r4], %r5;
 barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
 ld.shared.u32 %r6, [%r1]; mov.u32 %r7, %ctaid.x; mad.wide.u32 %rd1, %r7, 4, %rd0; st.global.u32 [%rd1], %r6;
""",
        [out],
        grid=(8, 1, 1),
        cluster=(4, 1, 1),
        before=".shared .align 16 .b8 buf[16];",
        policy=policy,
    )
    assert out.tolist() == [103, 100, 101, 102] * 2


@pytest.mark.parametrize("races", [False, True])
def test_an_arrival_at_a_cta_that_has_ended(races):
    """A cluster must stay until the last remote arrival (CUDA programming guide, distributed shared memory).

    A finding; the run goes on: kernels that end so are known to run on hardware.
    """
    body = """
 mov.u32 %r0, %cluster_ctarank; ld.param.u64 %rd0, [p0]; mov.u32 %r1, buf;
 mbarrier.init.shared.b64 [%r1], 1; fence.mbarrier_init.release.cluster;
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 setp.eq.u32 %p0, %r0, 1; @%p0 ret;
WAIT:
 ld.volatile.global.u32 %r6, [%rd0]; add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, 40; @%p1 bra WAIT;
 mapa.shared::cluster.u32 %r4, %r1, 1; mbarrier.arrive.shared::cluster.b64 _, [%r4];
""".replace("mov.u32 %r1, buf;", "mov.u32 %r1, buf; mov.u32 %r7, 0;")
    report = run(body, [aligned(1, np.uint32)], grid=(2, 1, 1), cluster=(2, 1, 1),
                 before=".shared .align 16 .b8 buf[16];", races=races)  # fmt: skip
    assert [f.kind for f in report.findings] == ["arrival at a CTA that has ended"] * races
    with pytest.raises(EmulatorError, match=r"a shared access reaches CTA \(1, 0, 0\), which has ended"):
        run(body.replace("mbarrier.arrive.shared::cluster.b64 _, [%r4]", "st.shared::cluster.u32 [%r4], 0"),
            [aligned(1, np.uint32)], grid=(2, 1, 1), cluster=(2, 1, 1),
            before=".shared .align 16 .b8 buf[16];")  # fmt: skip
