# SPDX-License-Identifier: Apache-2.0
"""What is quickly known of a candidate, before its kernel is worked out.

A spec that contradicts itself is refused once everything that it leaves open has been tried: thousands of tiles. The
rules of `config.invariants`, `kernel` and `epilogue` stay the ones that decide; none may refuse less than this.
"""

from __future__ import annotations

from cutegemm.config.invariants.tiles import legal_swizzles
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.epilogue import piece_columns
from cutegemm.planning.setting import Setting
from cutegemm.spec import AUTO

NONE = range(0)


def passes(setting: Setting, kind: Candidate, n: int, k: int, counts: range) -> range:
    """Of so many passes over a tile's rows those that parts of K, swizzles, buffers and shared memory leave.

    Counts the given stages, or two, and the given buffers of outputs; what else lies beside them takes more.

    Args:
        kind: a candidate but for its tile.
        n, k: the tile's columns and depth.
        counts: passes of the consumers that share a tile.
    """
    spec, (a, b), mma_m = setting.spec, setting.loads.operands, setting.limits.mma_m
    if kind.splits > max(1, -(-setting.problem.k // k)):
        return NONE
    columns = n // b.halves
    if spec.swizzle != AUTO:
        # rows of an A that is contiguous along them are whole rows of some swizzle, which one is up to their number
        wide = spec.swizzle in legal_swizzles(b, columns, k) and (
            not a.k_major or spec.swizzle in legal_swizzles(a, mma_m, k)
        )
        if not wide:
            return NONE
    stages = spec.stages if isinstance(spec.stages, int) else 2 if spec.tile == AUTO else 1
    shared = spec.ctas_per_sm if isinstance(spec.ctas_per_sm, int) else 1
    room = setting.limits.smem_bytes // shared - stages * n * k * b.dtype.bytes
    least = 1
    # of a cluster that adds up parts every CTA stores a slice of its own
    if isinstance(spec.epilogue_stages, int) and kind.depth == 1:
        width = piece_columns(columns, setting.outputs, setting.inputs)
        through = sum(x.dtype.bytes for x in setting.outputs if x.store != "direct")
        room -= spec.epilogue_stages * kind.consumers * mma_m * width * through
        least = -(-spec.epilogue_stages // (columns // width))
    most = room // (stages * mma_m * a.halves * kind.team * k * a.dtype.bytes)
    return range(max(counts.start, least), min(counts.stop, most + 1))


__all__ = ["passes"]
