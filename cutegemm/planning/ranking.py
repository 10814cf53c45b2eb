# SPDX-License-Identifier: Apache-2.0
"""The generator's configs of a request by predicted time, both ways round; NumPy is imported with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cutegemm.config.registers import plain_epilogue
from cutegemm.planning import cost, generator, invariance
from cutegemm.planning.candidates import TENSOR_CORE_SCHEDULES, Candidate
from cutegemm.planning.epilogue import stored
from cutegemm.planning.request import Request
from cutegemm.planning.swap import transposed_problem
from cutegemm.problems import Problem
from cutegemm.spec import AUTO

# configs whose exact order is worked out: what is predicted slower than so many others does not win
MOST = 512
# fields that the table does not know; where one is given the orders of `candidates` choose
UNKNOWN = ("tile", "split_k", "split_reduction", "scheduler", "sms", "ctas_per_sm", "stages", "input_stages",
           "epilogue_stages", "swizzle")  # fmt: skip


class Option(NamedTuple):
    """A config with its predicted nanoseconds; the candidate is of D's transpose where operands are swapped."""

    ns: float
    swapped: bool
    candidate: Candidate


def open_to(asked: Request) -> bool:
    """Whether the cost model chooses: TMA loads both operands, and nothing is given that the table does not know."""
    spec, problem = asked.spec, asked.problem
    loads = ((spec.a_load, problem.a), (spec.b_load, problem.b))
    by_tma = all(load in (AUTO, "tma") and x.tma_reason() is None for load, x in loads)
    given = any(getattr(spec, x) != AUTO for x in UNKNOWN) or spec.depth is not None
    pinned = invariance.along_rows(asked) or asked.epilogue.gated is not None
    return asked.device.cost is not None and by_tma and not given and not pinned and problem.k > 0


def options(asked: Request) -> Iterator[Option]:
    """The configs that the spec allows, fastest first; those that are predicted slower than so many are left out."""
    return beside(asked, False, None)[1]


def predicted(asked: Request, swapped: bool, candidates: Sequence[Candidate]) -> list[float]:
    """Nanoseconds of candidates, of D's transpose where operands are swapped."""
    assert asked.device.cost is not None
    if not candidates:
        return []
    problem = transposed_problem(asked.problem) if swapped else asked.problem
    counted = cost.counts(problem, asked.device, generator.rows(candidates))
    found: list[float] = cost.nanoseconds(counted, asked.device.cost).tolist()
    return found


def beside(asked: Request, turned: bool, own: Candidate | None) -> tuple[float, Iterator[Option]]:
    """Nanoseconds of a candidate, 0 of none, and the `options` beside it.

    Args:
        turned: whether the candidate is of D's transpose.
        own: the candidate.
    """
    device, found, counted = asked.device, [], []
    assert device.cost is not None
    for swapped in _ways(asked) if own is None else (not turned, turned):
        problem = transposed_problem(asked.problem) if swapped else asked.problem
        rows = _rows(asked, problem, swapped)
        if own is not None and swapped == turned:
            # the last row of all
            rows = cost.Rows(*np.concatenate([np.array(rows), np.array(generator.rows([own]))], axis=1))
        if len(rows.m):
            found.append((swapped, rows))
            counted.append(cost.counts(problem, device, rows))
    if not found:
        return 0.0, iter(())
    each = cost.Counts(*map(np.concatenate, zip(*counted, strict=True)))
    ns = cost.nanoseconds(each, device.cost)
    if own is None:
        return 0.0, _sorted(found, ns)
    return float(ns[-1]), _sorted(found, ns[:-1])


def _sorted(found: list[tuple[bool, cost.Rows]], ns: cost.Column) -> Iterator[Option]:
    """Configs of one way round and of the other, fastest first."""
    places = np.argpartition(ns, MOST)[:MOST] if len(ns) > MOST else np.arange(len(ns))
    first = len(found[0][1].m)
    for place in places[np.argsort(ns[places], kind="stable")].tolist():
        swapped, rows = found[place >= first]
        yield Option(
            float(ns[place]), swapped, generator.candidate(rows, place if place < first else place - first)
        )


def _ways(asked: Request) -> tuple[bool, ...]:
    return (asked.spec.swap,) if isinstance(asked.spec.swap, bool) else (False, True)


def _rows(asked: Request, problem: Problem, swapped: bool) -> cost.Rows:
    """The configs that the spec allows one way round."""
    spec, rows = asked.spec, generator.table(_kind(asked, problem))
    if spec.swap not in (AUTO, swapped):
        return cost.Rows(*(x[:0] for x in rows))
    if (spec.schedule, spec.consumers, spec.cluster) != (AUTO, AUTO, AUTO):
        rows = _given(asked, rows, swapped)
    # how many splits pay depends on M
    whole = spec.batch_invariant is True or not len(rows.m)
    return rows if whole else generator.split(problem, asked.device, rows)


def _kind(asked: Request, problem: Problem) -> generator.Kind:
    outputs = stored(asked.spec, asked.problem, asked.epilogue, [])
    return generator.Kind(
        limits=asked.device.limits,
        plain=plain_epilogue(asked.epilogue, outputs),
        a_k=problem.a.unit_col,
        b_k=problem.b.unit_row,
        d_row=any(x.unit_col for _, x in problem.outputs),
        bytes=problem.a.dtype.bytes,
    )


def _given(asked: Request, rows: cost.Rows, swapped: bool) -> cost.Rows:
    """The rows that have the given schedule, consumers and cluster."""
    spec = asked.spec
    fits = np.ones(len(rows.m), dtype=bool)
    if spec.schedule in TENSOR_CORE_SCHEDULES:
        fits &= rows.schedule == TENSOR_CORE_SCHEDULES.index(spec.schedule)
    if isinstance(spec.consumers, int):
        fits &= rows.consumers == spec.consumers
    if spec.plane is not None:
        across, along = spec.plane[::-1] if swapped else spec.plane
        fits &= (rows.across == across) & (rows.along == along)
    return cost.Rows(*(x[fits] for x in rows))


__all__ = ["Option", "beside", "open_to", "options", "predicted"]
