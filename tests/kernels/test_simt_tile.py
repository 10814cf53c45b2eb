# SPDX-License-Identifier: Apache-2.0
"""How the CUDA-core loops share out a tile: each element once, and no bank conflicts."""

import dataclasses

import pytest

from cutegemm.config import (
    MatrixConfig,
    SimtConfig,
)
from cutegemm.config.simt import copies_serve, runs_serve
from cutegemm.dtypes import as_dtype
from cutegemm.kernels.cuda_cores.simt_epilogue import LANE_BITS
from cutegemm.kernels.cuda_cores.simt_runs import RunShape
from cutegemm.kernels.cuda_cores.simt_staged import StagedShape
from cutegemm.kernels.cuda_cores.simt_tile import TileShape
from tests.support.simt_configs import simt


def copied(shape: TileShape) -> list[tuple[int, int]]:
    """(row, k) of every element that some thread copies, thread by thread."""
    rows, depth = shape.extents if not shape.along_k else shape.extents[::-1]
    count = rows * depth
    found = []
    for thread in range(min(shape.threads, count)):
        row0, k0 = shape.place(thread)
        for more_rows, more_k in map(shape.move, range(shape.copies)):
            for x in range(shape.vector):
                along = (0, x) if shape.along_k else (x, 0)
                found.append((row0 + more_rows + along[0], k0 + more_k + along[1]))
    return found


@pytest.mark.parametrize("major", ["k", "m", "strided"])
@pytest.mark.parametrize(
    "rows,depth,vector,threads",
    [
        (128, 16, 4, 256),
        (128, 16, 1, 256),
        (64, 16, 2, 64),
        (128, 16, 1, 64),
        (256, 16, 4, 256),
        (16, 32, 4, 256),
        (16, 32, 1, 128),
        (64, 32, 4, 128),
        (16, 64, 4, 128),
    ],
)
def test_tile_is_copied_once_into_distinct_aligned_places(major, rows, depth, vector, threads):
    """Threads' copies cover each element of a tile once; its places in shared memory differ and copies align."""
    matrix = MatrixConfig(dtype=as_dtype("fp32"), major=major)
    shape = TileShape(matrix=matrix, rows=rows, depth=depth, vector=vector, threads=threads)
    assert copies_serve(rows, depth, threads, vector, shape.along_k)
    seen = copied(shape)
    assert sorted(seen) == [(row, k) for row in range(rows) for k in range(depth)]
    places = [shape.at(row, k) for row, k in seen]
    assert len(set(places)) == rows * depth
    assert max(places) < shape.elements
    starts = places[::vector]
    assert all(x % vector == 0 for x in starts)
    assert all(places[i + 1] == places[i] + 1 for i in range(len(places)) if (i + 1) % vector)


def lane_groups(config: SimtConfig, axis: int) -> list[int]:
    """The number, along M or N, of the group of four that each lane reads."""
    bits = LANE_BITS[config.lanes_m][axis]
    return [sum((lane // bit % 2) << i for i, bit in enumerate(bits)) for lane in range(32)]


@pytest.mark.parametrize("lanes_m", [2, 4, 8, 16])
@pytest.mark.parametrize(
    "major,vector,depth", [("k", 4, 16), ("k", 4, 32), ("k", 4, 64), ("k", 1, 16), ("m", 4, 16)]
)
def test_fragments_are_free_of_bank_conflicts(lanes_m, major, vector, depth):
    """Each half of a warp reads its 16-byte words at once: two lanes of a low bit share, the words' banks differ.

    Rows of 16 k have four chunks, which eight lanes side by side along one axis cannot share.
    """
    config = dataclasses.replace(simt(), lanes_m=lanes_m)
    matrix = MatrixConfig(dtype=as_dtype("fp32"), major=major)
    shape = TileShape(matrix=matrix, rows=128, depth=depth, vector=vector, threads=128)
    for axis in (0, 1):
        groups = lane_groups(config, axis)
        if shape.by_rows and depth == 16 and len(set(groups[:16])) == 8:
            continue
        for x in range(4):
            for k in range(0, depth, 4):
                row = (lambda g, x=x: 4 * g + x) if shape.by_rows else (lambda g: 4 * g)
                for half in (groups[:16], groups[16:]):
                    assert any(all(half[i] == half[i ^ bit] for i in range(16)) for bit in (1, 2))
                    banks = {shape.at(row(g), k) // 4 % 8 for g in half}
                    assert len(banks) == len(set(half))


@pytest.mark.parametrize("vector,depth", [(4, 8), (4, 16), (8, 16), (2, 8)])
def test_transposing_stores_are_free_of_bank_conflicts(vector, depth):
    """When vectors lie along k, a warp's store of one element each touches all 32 banks."""
    matrix = MatrixConfig(dtype=as_dtype("fp32"), major="k")
    shape = StagedShape(matrix=matrix, rows=128, depth=depth, vector=vector, threads=128)
    places = [shape.place(thread) for thread in range(32)]
    assert len({(shape.line(k) + row) % 32 for row, k in places}) == 32


@pytest.mark.parametrize("major", ["k", "m"])
@pytest.mark.parametrize(
    "rows,depth,vector,threads",
    [
        (128, 8, 4, 256),
        (128, 8, 1, 256),
        (64, 16, 8, 64),
        (128, 8, 1, 64),
        (256, 8, 4, 256),
    ],
)
def test_staged_tile_is_loaded_once_into_distinct_aligned_places(major, rows, depth, vector, threads):
    """Threads' vectors cover each element of a tile once; its places in shared memory differ and fragments align."""
    matrix = MatrixConfig(dtype=as_dtype("fp32"), major=major)
    shape = StagedShape(matrix=matrix, rows=rows, depth=depth, vector=vector, threads=threads)
    seen = []
    for thread in range(threads):
        row0, k0 = shape.place(thread)
        for more_rows, more_k in map(shape.move, range(shape.loads)):
            for x in range(vector):
                along = (0, x) if major == "k" else (x, 0)
                seen.append((row0 + more_rows + along[0], k0 + more_k + along[1]))
    assert sorted(seen) == [(row, k) for row in range(rows) for k in range(depth)]
    places = {shape.line(k) + row for row, k in seen}
    assert len(places) == rows * depth
    assert max(places) < shape.elements
    assert all(shape.line(k) % 4 == 0 for k in range(depth))


@pytest.mark.parametrize("rows,depth,threads", [(112, 8, 128), (128, 8, 128), (128, 16, 256), (64, 16, 256)])
def test_runs_cover_a_tile_and_are_free_of_bank_conflicts(rows, depth, threads):
    """Every element of a tile is loaded once, four rows side by side; a quarter of a warp stores to all 32 banks."""
    matrix = MatrixConfig(dtype=as_dtype("fp32"), major="k")
    shape = RunShape(matrix=matrix, rows=rows, depth=depth, vector=1, threads=threads)
    assert runs_serve(rows, depth, threads) and shape.pitch % 8 == 4
    seen = []
    for thread in range(threads):
        row0, k0 = shape.place(thread)
        for i in range(shape.loads):
            more, none = shape.move(i)
            assert none == 0 and (row0 + more) % 4 == i % 4
            seen.append((row0 + more, k0))
    assert len(set(seen)) == len(seen) and set(seen) >= {
        (row, k) for row in range(rows) for k in range(depth)
    }
    places = {shape.line(k) + row for row, k in seen}
    assert len(places) == len(seen) and max(places) < shape.elements
    for first in range(0, threads, 8):
        starts = [shape.line(k) + row for row, k in map(shape.place, range(first, first + 8))]
        assert sorted(x // 4 % 8 for x in starts) == list(range(8))


@pytest.mark.parametrize("vector,depth", [(4, 16), (4, 32), (2, 16), (1, 16), (1, 32)])
def test_copies_along_k_are_free_of_bank_conflicts(vector, depth):
    """Each pass of a warp's copies along k, 128 bytes of lanes in order, touches all 32 banks."""
    matrix = MatrixConfig(dtype=as_dtype("fp32"), major="k")
    shape = TileShape(matrix=matrix, rows=128, depth=depth, vector=vector, threads=128)
    starts = [shape.at(*shape.place(thread)) for thread in range(32)]
    for first in range(0, 32, 32 // vector):
        words = [x + y for x in starts[first : first + 32 // vector] for y in range(vector)]
        assert len({word % 32 for word in words}) == 32
