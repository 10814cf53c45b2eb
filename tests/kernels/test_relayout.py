# SPDX-License-Identifier: Apache-2.0
"""The re-layout copy: what it compiles to, its grid, and (on a GPU) that every bit arrives and nothing else moves."""

import re

import pytest

from cutegemm.compiling import kernel_cache, loader
from cutegemm.compiling.compiler import record_launches
from cutegemm.config import RelayoutConfig
from cutegemm.dtypes import as_dtype
from cutegemm.emulator import Options, Step, run_steps, tensor_buffer
from cutegemm.errors import EmulatorError
from cutegemm.plans.launch_limits import COPIED
from tests.support.prefetches import ALWAYS, as_loads

torch = pytest.importorskip("torch")


def compiled(kind: str, *units: str):
    """The kernel for a dtype and the unit-stride axes of what it copies."""
    return kernel_cache.artifact(RelayoutConfig(dtype=as_dtype(kind), units=units))


@pytest.mark.parametrize("kind", ["int8", "bf16", "fp32"])
@pytest.mark.parametrize("unit", ["col", "row"])
def test_lines_move_in_16_byte_words(kind, unit):
    """Two chunks per thread, each from two aligned words, or one at the edges; no shared memory and no spills."""
    kernel = compiled(kind, unit)
    assert len(re.findall(r"ld\.global\.v4", kernel.ptx)) == (2 + 1) * 2
    assert (
        len(re.findall(r"st\.global\.v4", kernel.ptx)) == kernel.resources.instructions["st.global"] == 2 + 1
    )
    assert kernel.resources.frame_bytes == kernel.resources.smem_bytes == 0
    assert kernel.resources.registers <= 32  # eight CTAs of 256 threads per SM


def test_the_planner_knows_how_far_a_copy_counts():
    """A CTA's rows of short lines; columns and tiles are fewer."""
    # here, since other tests can use compiled kernels on a machine without the DSL
    from cutegemm.kernels import relayout_copy

    assert relayout_copy.THREADS * relayout_copy.CHUNKS == COPIED > relayout_copy.TILE


def test_all_words_are_requested_before_any_is_used():
    """The wide loads stand before the first store, so that a thread's chunks are in flight together."""
    ptx = compiled("bf16", "col").ptx
    # what follows are the edges' chunks, one at a time
    loads = [x.start() for x in re.finditer(r"ld\.global\.v4", ptx)][: 2 * 2]
    assert max(loads) < min(ptx.index("st.global.v4"), ptx.index("shf."))


@pytest.mark.parametrize("kind", ["int8", "bf16", "fp32"])
def test_source_without_unit_stride_is_written_in_16_byte_words(kind):
    """Elements are read one by one, staged in shared memory, and written in whole words."""
    kernel = compiled(kind, "none")
    assert len(re.findall(r"st\.global\.v4", kernel.ptx)) == kernel.resources.instructions["st.global"]
    assert kernel.resources.frame_bytes == 0
    assert kernel.resources.smem_bytes > 64 * 64 * as_dtype(kind).bytes


def test_bytes_are_transposed_in_registers():
    """Of 4 x 16 bytes a thread: two words a line, 8 selections, 4 stores and a load of shared memory, and one store."""
    kernel = compiled("int8", "transposed")
    # all lines at once, or one by one at the edges
    assert len(re.findall(r"ld\.global\.v4", kernel.ptx)) == (4 + 4) * 2
    assert len(re.findall(r"prmt\.b32[^;]*, %r\d+;", kernel.ptx)) == 4 * 8
    assert len(re.findall(r"st\.shared\.b32", kernel.ptx)) == 4 * 4
    for wide in (r"ld\.shared\.v4", r"st\.global\.v4"):
        assert len(re.findall(wide, kernel.ptx)) == 4
    assert kernel.resources.frame_bytes == 0 and kernel.resources.smem_bytes == 128 * 128
    assert kernel.resources.registers <= 48  # five CTAs of 256 threads per SM


@pytest.mark.parametrize("kind,unit,rows,cols,batch,ctas", [
    ("int8", "col", 4096, 4097, 1, 128 * 17),  # 257 chunks: 17 of 16 threads; 32 lines per CTA
    ("int8", "transposed", 4096, 4097, 2, 32 * 33 * 2),
    ("bf16", "col", 4096, 4097, 1, 256 * 17),  # 513 chunks: 17 of 32 threads; 16 lines per CTA
    ("bf16", "row", 4097, 4096, 1, 256 * 17),
    ("bf16", "col", 1000, 9, 2, 4 * 2),  # 2 chunks a line: 256 lines per CTA
    ("bf16", "none", 65, 64, 3, 2 * 3),
])  # fmt: skip
def test_grid_covers_the_lines(kind, unit, rows, cols, batch, ctas):
    """Threads spread along a line only as far as it has chunks; of bytes that are transposed a CTA has a tile."""
    kernel = compiled(kind, unit)
    arguments = ((4096, 8192), (rows, cols, batch), (cols, 1, 0, cols, 1, 0), 0)
    (launch,) = record_launches(kernel.obj, kernel.ptx, arguments)
    assert launch.grid == (ctas, 1, 1)
    assert launch.block == (256, 1, 1)


BITS = {"int8": torch.int8, "bf16": torch.int16, "fp32": torch.int32}
POISON = 0x5A


def copy(kind, units, sources, edited=str):
    """Relayout each source (batch, rows, cols) of bits, in one launch; returns the destinations (batch, lines, ld),
    poisoned before, and on the emulator what it counted. A byte outside of the sources faults there. The emulator runs
    the PTX that `edited` returns.
    """
    targets, addresses, shapes, strides = [], (), (), ()
    for unit, source in zip(units, sources, strict=True):
        batch, rows, cols = source.shape
        lines, length = (cols, rows) if unit == "row" else (rows, cols)
        step = max(8, 16 // source.element_size())
        pitch = -(-length // step) * step
        target = torch.full((batch, lines, pitch), POISON, device=source.device, dtype=source.dtype)
        line = target.stride(1)
        out = (1, line, target.stride(0)) if unit == "row" else (line, 1, target.stride(0))
        strides += (source.stride(1), source.stride(2), source.stride(0), *out)
        addresses += (source.data_ptr(), target.data_ptr())
        shapes += (rows, cols, batch)
        targets.append(target)
    kernel = compiled(kind, *units)
    if sources[0].is_cuda:
        loader.load(kernel.obj)(addresses, shapes, strides, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        return targets, {}
    (launch,) = record_launches(kernel.obj, kernel.ptx, (addresses, shapes, strides, 0))
    buffers = [tensor_buffer(x, f"source {i}") for i, x in enumerate(sources)]
    buffers += [tensor_buffer(x, f"target {i}") for i, x in enumerate(targets)]
    step = Step(edited(kernel.ptx), launch.grid, launch.block, launch.cluster, launch.smem, launch.params)
    (report,) = run_steps([step], buffers, Options(policy="random", seed=1, races=True, meter=True))
    assert not report.findings
    return targets, report.counters


def check(kind, unit, source):
    """Every element arrives, as `assert_moved` says."""
    (target,), counters = copy(kind, (unit,), (source,))
    assert_moved(unit, source, target)
    return counters


def assert_moved(unit, source, target):
    """Every element is there; the rest of the last 16-byte word is zero, what follows is untouched."""
    moved = source.transpose(1, 2) if unit == "row" else source
    length = moved.shape[2]
    word_end = -(-length // (16 // source.element_size())) * (16 // source.element_size())
    assert torch.equal(target[:, :, :length], moved)
    assert (target[:, :, length:word_end] == 0).all()
    assert (target[:, :, word_end:] == POISON).all()


def bits(kind, count, device="cuda"):
    """Random bit patterns, NaNs and infinities included."""
    return torch.randint(-32768, 32767, (count,), device=device, dtype=torch.int32).to(BITS[kind])


def lying(kind, unit, batch, rows, cols, offset, device="cuda"):
    """A source whose memory begins `offset` elements behind a multiple of 16 bytes and ends with its last element."""
    flat = bits(kind, offset + batch * rows * cols, device)[offset:]
    along_rows = unit in ("row", "transposed")
    return flat.view(batch, cols, rows).mT if along_rows else flat.view(batch, rows, cols)


@pytest.mark.parametrize("kind,units", [
    ("bf16", ("col", "row")), ("bf16", ("none", "none")), ("bf16", ("row", "none", "col")), ("fp32", ("none", "col")),
    ("int8", ("transposed", "col")), ("int8", ("none", "transposed", "row")), ("int8", ("transposed", "transposed")),
])  # fmt: skip
def test_one_launch_makes_all_copies(kind, units):
    """Each copy has its own CTAs: extents, misalignments and batches of one do not reach another."""
    sources = []
    for i, unit in enumerate(units):
        batch, rows, cols = ((2, 37, 71), (1, 9, 301), (3, 66, 5))[i]
        if unit == "none":
            source = bits(kind, batch * rows * cols * 2, "cpu").view(batch, rows, 2 * cols)[:, :, ::2]
        else:
            source = lying(kind, unit, batch, rows, cols, i + 1, "cpu")
        sources.append(source)
    targets, _ = copy(kind, units, sources)
    for unit, source, target in zip(units, sources, targets, strict=True):
        assert_moved(unit, source, target)


@pytest.mark.parametrize("kind,unit", [
    ("bf16", "col"), ("bf16", "row"), ("fp32", "col"), ("int8", "col"), ("int8", "row"), ("int8", "transposed")
])  # fmt: skip
def test_every_misalignment_is_shifted_away(kind, unit):
    """Lines that begin at any byte of a word, whole chunks of them and their ends, on the emulator."""
    # so many lines that threads have all of their chunks
    lines, offsets = (70, 16) if kind == "int8" else (40, 8)
    for offset in range(offsets):
        check(
            kind,
            unit,
            lying(kind, unit, 1, *((lines, 299) if unit == "col" else (299, lines)), offset, "cpu"),
        )


def test_small_copies_prefetch():
    """A sector for each line of L2 in which a chunk of a row begins; none where not all CTAs run at once."""
    # 64 lines of eight chunks per CTA
    few, more = 8 * 64, 513 * 64
    source = lying("bf16", "col", 1, more, 64, 3, "cpu")
    plain, double, loaded, many = (
        copy("bf16", ("col",), (source[:, :lines],), edited)[1]["global_load_sectors"]
        for lines, edited in ((few, str), (2 * few, str), (few, as_loads), (more, as_loads))
    )
    # all chunks of 16 bytes of a row begin in one line if its first chunk is the line's first
    assert loaded - plain == few * (1 if source.data_ptr() % 128 < 16 else 2)
    assert (many - plain) * few == (double - plain) * (more - few)


@pytest.mark.parametrize("unit", ["col", "row"])
def test_prefetches_stay_inside_the_sources(unit):
    """Loads of the same addresses do not fault; without their predicates they do."""
    for batch, lines, length, offset in ((1, 37, 301, 3), (2, 5, 9, 0), (3, 66, 64, 7)):
        rows, cols = (lines, length) if unit == "col" else (length, lines)
        source = lying("bf16", unit, batch, rows, cols, offset, "cpu")
        copy("bf16", (unit,), (source,), as_loads)
        with pytest.raises(EmulatorError, match="out of bounds"):
            copy("bf16", (unit,), (source,), lambda ptx: as_loads(ptx, ALWAYS))


@pytest.mark.parametrize("kind", BITS)
def test_only_prefetches_precede_the_wait(kind):
    """Earlier launches may still write the sources and read the copies; one for each chunk of a thread."""
    before, after = compiled(kind, "col").ptx.split("griddepcontrol.wait")
    assert before.count("prefetch.global.L2") == 2 and "prefetch" not in after
    assert "ld.global" not in before and "st.global" not in before
    for unit in ("none", "transposed") if kind == "int8" else ("none",):
        (before, _) = compiled(kind, unit).ptx.split("griddepcontrol.wait")
        assert "ld.global" not in before and "st.global" not in before


@pytest.mark.parametrize(
    "rows,cols,batch", [(1, 200, 1), (200, 1, 2), (15, 3, 3), (129, 131, 1), (16, 257, 2)]
)
def test_edges_of_bytes_that_are_transposed(rows, cols, batch):
    """Tiles of which a line, a column, or all but a byte lie beyond the matrix; memory ends with the last element."""
    for offset in (0, 7):
        check("int8", "transposed", lying("int8", "transposed", batch, rows, cols, offset, "cpu"))


def test_slices_of_bytes_are_transposed():
    """Lines further apart than they are long, one matrix for all batches, and a single line for all columns."""
    whole = bits("int8", 2 * 70 * 333, "cpu").view(2, 70, 333)
    check("int8", "transposed", whole[:, 3:50, 7:290].mT)
    check("int8", "transposed", whole[:1, :, 5:].mT.expand(3, -1, -1))
    check("int8", "transposed", whole[0, :1, :30].mT.expand(1, 30, 20))


def test_shared_memory_serves_transposed_bytes_without_conflicts():
    """A whole tile takes a wavefront for every 128 bytes that are written and read, aligned or not."""
    for offset in (0, 5):
        counted = check("int8", "transposed", lying("int8", "transposed", 1, 256, 128, offset, "cpu"))
        for way in ("store", "load"):
            assert counted[f"shared_{way}_wavefronts"] == 256 * 128 // 128


@pytest.mark.gpu
@pytest.mark.parametrize("kind,unit", [
    *((kind, unit) for kind in BITS for unit in ("col", "row")), ("int8", "transposed")
])  # fmt: skip
@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize(
    "rows,cols,batch", [(1, 1, 1), (37, 301, 2), (300, 9, 1), (1025, 513, 1), (64, 64, 3)]
)
def test_every_bit_arrives(kind, unit, offset, rows, cols, batch):
    """Any misalignment of the base, any leading dimension; the matrix ends where its memory does."""
    check(kind, unit, lying(kind, unit, batch, rows, cols, offset))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", BITS)
def test_slices_and_strided_views(kind):
    """A slice of a wider matrix, and views with neither stride 1."""
    whole = bits(kind, 2 * 200 * 333).view(2, 200, 333)
    check(kind, "col", whole[:, 3:150, 7:290])
    check(kind, "none", whole[:, ::3, 1::2])
    check(kind, "none", whole[:, 1::2, ::3].transpose(1, 2))
