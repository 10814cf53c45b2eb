# SPDX-License-Identifier: Apache-2.0
"""What a thread's registers hold beside its accumulators: a sum over what the epilogue does.

The accumulators of a tile are all live when its epilogue begins. What the epilogue loads, reduces and stores comes on
top, for as many elements as the compiler interleaves, and so do addresses. A thread that holds more than its registers
spills to local memory. The planner takes no tile that does so unless a spec asks for it or nothing else is left.

The counts are fitted to ptxas on some 700 kernels of drawn specs, most with the largest tiles of a schedule: the least
for which kernels that spill exceed their registers. They find 95 % of those kernels, and with the tiles that the
planner prefers leave one in a hundred kernels that spills up to 64 bytes. Those of reductions are fitted to 122 further
kernels: six of the seven that spill are found, and five others are taken to spill. That of shifted words is fitted to
30 kernels: those of more than 160 accumulators spill up to 200 bytes, four of fewer, not counted, up to 24.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from cutegemm.arch.limits import Limits
from cutegemm.config.draft import KernelDraft
from cutegemm.config.numbers import Number, least, where
from cutegemm.config.parts import OutputConfig
from cutegemm.config.registers import set_registers
from cutegemm.config.simt import SimtTile
from cutegemm.epilogue.graph import NEUTRAL, Graph, Result

# of a tile scheduler, a pipeline and the descriptors of a wgmma
BASE = 26
# of another 64 rows: their coordinates
PASS = 3
# of a vector along D.s rows or, for each pass, its columns
VECTOR = 1
# 64-bit addresses, and elements on their way: of a matrix that threads load, of one that they store, and of one whose
# rows are stored in words of several elements that are shifted together
LOADED, STORED, SHIFTED = 58, 12, 34
# of each number of a reduction's state, by D's axis that it runs along: values, whether they are inside, lanes' states
REDUCED = {0: 16, 1: 16, None: 32}
# of a logsumexp: exponentials of a whole subtile or its rows at once; those of columns are few
EXPONENTIALS = {0: 0, 1: 42, None: 32}
# of each further reduction: its state, and addresses of its partial results; a subtile's reductions follow one another,
# so that values of the largest alone are live
FURTHER = 10
# of what is stored beside values of blocks: 64 rows of 128 columns, until these are quantised
BLOCK_VALUES = 64
# of random numbers: rounds of the generator for several elements at once
RANDOM = 148
# registers from which ptxas schedules so many loads ahead that it spills a few bytes whatever is left
MOST_USED = 240
# of a CUDA-core thread: fragments, coordinates and addresses; the address of each CTA that shares its sums; addresses
# of elements loaded one by one; each number of a reduction's state over all of a thread's elements, and over a few of
# them or of a gated pair
SIMT_BASE, SIMT_PEER, SIMT_SINGLES, SIMT_REDUCED, SIMT_SHARED = 44, 2, 8, 42, 8


def beside_accumulators(config: KernelDraft) -> list[tuple[str, Number]]:
    """Registers that a thread holds beside its accumulators while the epilogue runs: what for, and how many."""
    graph = config.epilogue
    loaded = sum(
        kind == "matrix" and x.load != "tma"
        for kind, x in zip(graph.tensors.values(), config.inputs, strict=True)
    )
    return [
        ("base", BASE + PASS * config.passes),
        ("rows", VECTOR * len(graph.names("row"))),
        ("columns", VECTOR * config.passes * len(graph.names("col"))),
        ("loads", LOADED * loaded),
        ("stores", sum(map(_stored, config.outputs))),
        ("reductions", _reduced(graph.reductions)),
        ("blocks", BLOCK_VALUES * sum(not x.block for x in graph.stores) * bool(graph.blocks)),
        ("random", RANDOM * any(node.op == "random" for node in graph.nodes)),
    ]


def _stored(output: OutputConfig) -> int:
    """Registers of a store."""
    shifted = output.store == "staged" and output.major == "n" and output.dtype.bits <= 16
    return 0 if output.store == "tma" else SHIFTED if shifted else STORED


def _reduced(results: Sequence[Result]) -> int:
    """Registers of some reductions."""
    each = [
        REDUCED[x.axis] * len(NEUTRAL.get(x.kind, (0,))) + EXPONENTIALS[x.axis] * (x.kind == "logsumexp")
        for x in results
    ]
    return max(each, default=0) + FURTHER * max(len(each) - 1, 0)


def consumer_registers(config: KernelDraft) -> Number:
    """Registers of a consumer thread: what setmaxnreg gives it, or its share of the SM's."""
    moved = set_registers(config)[1]
    launched = config.limits.registers_per_sm // (config.threads * config.ctas_per_sm)
    return least(where(moved > 0, moved, launched), MOST_USED)


def spills(config: KernelDraft) -> Number:
    """Whether the accumulators and what the epilogue holds beside them exceed a thread's registers."""
    held = config.tile_values + sum(count for _, count in beside_accumulators(config))
    # a kernel that leaves sums for the next launch has no epilogue
    return config.stores & (held > consumer_registers(config))


def simt_spills(x: SimtTile, epilogue: Graph, singles: bool, limits: Limits) -> bool:
    """Whether a CUDA-core kernel's accumulators and what it holds beside them exceed a thread's registers.

    Args:
        singles: whether an operand is loaded element by element, each with an address of its own.
    """
    numbers = sum(len(NEUTRAL[result.kind]) for result in epilogue.reductions)
    shares = x.slices * x.split > 1
    held = math.prod(x.thread_tile) + SIMT_BASE + SIMT_PEER * x.split + SIMT_SINGLES * singles
    # threads that share sums take a few of them through the epilogue at once
    held += numbers * (SIMT_SHARED if shares else SIMT_REDUCED) + SIMT_SHARED * (epilogue.gated is not None)
    given = limits.registers_per_sm // (x.threads * x.residents)
    return held > min(given, limits.registers_per_thread)


def with_room(x: SimtTile, epilogue: Graph, singles: bool, limits: Limits) -> SimtTile:
    """The tile with as many CTAs an SM as leave its threads enough registers, at least one."""
    while x.residents > 1 and simt_spills(x, epilogue, singles, limits):
        x = dataclasses.replace(x, residents=x.residents // 2)
    return x
