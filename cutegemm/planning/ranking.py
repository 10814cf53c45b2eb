# SPDX-License-Identifier: Apache-2.0
"""A request's configs by predicted time, for all orientations and loads. NumPy is imported with this module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from cutegemm.arch.device import Device
from cutegemm.families import THREAD_LOADS
from cutegemm.planning import candidates, cost, generator, known_kernels
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.cost import Rows
from cutegemm.planning.seen import Seen, Side, by_way
from cutegemm.planning.ways import Kind, Option, Way, along_k, ways_of
from cutegemm.request.requirements import Request, may_saturate
from cutegemm.spec import Tile

# configs that are sorted; one that is predicted slower than so many others is not tried
MOST = 512
# glibc returns freed memory to the system until a block of this size has been freed once (mallopt(3), dynamic mmap
# threshold). Every plan would fault the pages of its columns in again.
np.empty(4 << 20, dtype=np.uint8)


def options(asked: Request) -> Iterator[Option]:
    """The configs that the spec allows, fastest first, without those that are predicted slower than many others."""
    ways = list(ways_of(asked))
    gemms = [gemm_of(x) for x in ways]
    of = _rows(asked, ways, gemms)
    if not len(of.m):
        return
    ns = _nanoseconds(asked, gemms, of)
    # in the table's order, which a partition changes, differently on each processor
    places = np.sort(np.argpartition(ns, MOST)[:MOST]) if len(ns) > MOST else np.arange(len(ns))
    for place in places[np.argsort(ns[places], kind="stable")].tolist():
        yield Option(float(ns[place]), ways[int(of.way[place])], generator.candidate(of, place))


def predicted(way: Way, found: Sequence[Candidate]) -> list[float]:
    """Nanoseconds of candidates."""
    ns: list[float] = _nanoseconds(way.request, [gemm_of(way)], generator.rows(found)).tolist()
    return ns


def _rows(asked: Request, ways: Sequence[Way], gemms: Sequence[Seen]) -> Rows:
    """The configs that a spec allows, of all ways."""
    if isinstance(asked.spec.tile, Tile):
        found = [candidates.given_tile(x.spec, x.limits, x.operands[0].halves) for x in ways]
        return generator.rows(found)._replace(way=np.arange(float(len(ways))))
    table = generator.tables(tuple(Kind.of(x) for x in ways))
    if may_saturate(ways[0].epilogue, ways[0].problem):
        return table
    return generator.split(asked.spec, gemms, asked.device, table)


def _nanoseconds(asked: Request, gemms: Sequence[Seen], of: Rows) -> cost.Column:
    """Nanoseconds of configs."""
    seen: Seen = by_way(gemms, of.way.astype(np.intp))
    counts = cost.counts(seen, _device(asked), of)
    if asked.spec.scheduler == "stream_k":
        # every SM has the same share of all k tiles
        counts = counts._replace(waves=counts.waves * counts.share, share=np.ones_like(counts.share))
    assert asked.device.cost is not None
    ns = cost.nanoseconds(counts, asked.device.cost)
    ns = ns * known_kernels.factors(asked.device, of, counts)
    # to the picosecond, so that no rounding error decides between a config and its mirror image
    return np.round(ns, 3)


def _device(asked: Request) -> Device:
    """The device with at most the SMs that a spec gives."""
    sms = asked.spec.sms
    if not isinstance(sms, int) or sms >= asked.device.sms:
        return asked.device
    clusters = tuple((size, max(1, min(count, sms // size))) for size, count in asked.device.clusters)
    return dataclasses.replace(asked.device, sms=sms, clusters=clusters)


def gemm_of(way: Way) -> Seen:
    """The GEMM that the kernels of a way see."""
    device, how, epilogue = way.request.device, way.request.instruction, way.epilogue
    read = epilogue.tensors.values()
    x, sides, by_threads = device.loads, [], 0
    for operand, view in zip(way.operands, way.views, strict=True):
        side = Side.of(view, along_k(view, operand.role), operand.halves * how.parts)
        if operand.load in THREAD_LOADS:
            size, by_threads = operand.dtype.bytes, by_threads + 1
            ns = size / x.rate(operand.load, operand.width, size)
            side = side._replace(shifted=operand.load == "shift", ns=ns)
        sides.append(side)
    once = x.first if by_threads else 0.0
    if way.copies:
        # copies read and write their bytes
        once += x.relayout + (1 + how.parts) * sum(y.source.bytes for y in way.copies) / device.dram_gbs
    adjacent, group_rows = way.request.batches
    seen = Seen.of(
        way.problem,
        sides,
        gates=way.operands[1].halves,
        halves=way.operands[0].halves,
        # per stage, threads wait for each operand's bytes and arrive on its barrier
        loaded=x.stage * by_threads,
        once=once,
        constant=way.spec.constants != (),
        scaled=bool(epilogue.scales),
        # two of every eight columns, if they have scales of their own
        read=sum(x.axis == "n" and x.extent == 1 for x in epilogue.scales) / 4,
        vectors="row" in read or "col" in read,
        promoted=0 if epilogue.scales else way.promoted,
        products=len(how.products) / how.parts,
        adjacent_m=adjacent == ("n" if way.swapped else "m"),
        adjacent_n=adjacent == ("m" if way.swapped else "n"),
        group_rows=group_rows,
        stages=candidates.given(way.spec.stages, way.most_stages),
    )
    return seen._replace(size=seen.size * how.parts)
