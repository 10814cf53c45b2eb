# SPDX-License-Identifier: Apache-2.0
"""What the cost model counts for candidates, and the generator's table of a request."""

from __future__ import annotations

from cutegemm.arch.records import DEFAULT
from cutegemm.planning import cost, generator, ways
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.seen import Seen
from cutegemm.request.requirements import requested

LARGE = Candidate((128, 256, 64), (2, 1), "cooperative", 2)


def way_of(spec, of):
    """The first way of a request, whose operands are not swapped unless the spec says so."""
    return next(ways.ways_of(requested(spec, of, DEFAULT)[0]))


def table(spec, of):
    """The table of that way, as columns of named numbers."""
    return generator.table(ways.Kind.of(way_of(spec, of)))


def counted(of, *candidates, device=DEFAULT, **more):
    """What candidates do; `more`: fields of `Seen`."""
    return cost.counts(Seen.of(of, **more), device, generator.rows(candidates))
