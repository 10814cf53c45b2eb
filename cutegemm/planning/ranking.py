# SPDX-License-Identifier: Apache-2.0
"""A request's configs by predicted time, swapped and not, for every way in; NumPy is imported with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from cutegemm.arch.device import Device
from cutegemm.planning import candidates, cost, generator
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.checks import Request
from cutegemm.planning.cost import Arrivals, Load, Rows, Seen
from cutegemm.planning.ways import Option, Setting, Way, ways_of
from cutegemm.problems import Problem
from cutegemm.spec import Tile

# configs whose exact order is worked out: what is predicted slower than so many others does not win
MOST = 512


def options(asked: Request) -> Iterator[Option]:
    """The configs that the spec allows, fastest first; those that are predicted slower than many others are left out.

    Raises:
        PlanError: a given load or store cannot be.
    """
    found = [(way, rows) for way in ways_of(asked) if len((rows := _rows(way)).m)]
    if not found:
        return
    ns = _nanoseconds(found)
    places = np.argpartition(ns, MOST)[:MOST] if len(ns) > MOST else np.arange(len(ns))
    ends = np.cumsum([len(rows.m) for _, rows in found])
    for place in places[np.argsort(ns[places], kind="stable")].tolist():
        which = int(np.searchsorted(ends, place, side="right"))
        way, rows = found[which]
        first = int(ends[which]) - len(rows.m)
        yield Option(float(ns[place]), way, generator.candidate(rows, place - first))


def predicted(way: Way, found: Sequence[Candidate]) -> list[float]:
    """Nanoseconds of candidates."""
    ns: list[float] = _nanoseconds([(way, generator.rows(found))]).tolist()
    return ns


def _rows(way: Way) -> Rows:
    """The configs that a spec allows one way."""
    (spec, setting), device = (way.seen.spec, way.setting), way.seen.device
    if isinstance(spec.tile, Tile):
        return generator.rows([candidates.given_tile(spec, spec.tile, setting.limits, setting.halves)])
    kind = generator.Kind.of(setting, way.seen.pinned)
    return generator.split(spec, setting.problem, device, generator.table(kind))


def _nanoseconds(found: Sequence[tuple[Way, Rows]]) -> cost.Column:
    """Nanoseconds of configs, one way after the other."""
    counted, beside = [], []
    for way, rows in found:
        setting, device = way.setting, _device(way.seen)
        counts = cost.counts(_whole(setting), device, rows, _seen(setting))
        if setting.spec.scheduler == "stream_k":
            # every SM has the same share of all k tiles
            counts = counts._replace(waves=counts.waves * counts.share, share=np.ones_like(counts.share))
        counted.append(counts)
        constant = isinstance(setting.spec.constant, tuple)
        beside.append(cost.arrivals(rows, _loads(setting), device.loads, device, constant=constant))
    each = cost.Counts(*map(np.concatenate, zip(*counted, strict=True)))
    rates = found[0][0].seen.device.cost
    assert rates is not None
    plain = all(_plain(way.setting) for way, _ in found)
    together = None if plain else Arrivals(*map(np.concatenate, zip(*beside, strict=True)))
    return cost.nanoseconds(each, rates, together)


def _plain(setting: Setting) -> bool:
    """Whether TMA loads both operands from where they are, when earlier launches have ended."""
    by_tma = all(x.load == "tma" for x in setting.loads.operands) and not setting.loads.copies
    return by_tma and not isinstance(setting.spec.constant, tuple)


def _device(asked: Request) -> Device:
    """The device, of no more SMs than a spec gives."""
    sms = asked.spec.sms
    if not isinstance(sms, int) or sms >= asked.device.sms:
        return asked.device
    clusters = tuple((size, max(1, min(count, sms // size))) for size, count in asked.device.clusters)
    return dataclasses.replace(asked.device, sms=sms, clusters=clusters)


def _whole(setting: Setting) -> Problem:
    """The problem as the kernel reads it, with all of a gated pair's operand."""
    seen, pair = setting.seen, setting.loads.pair
    if pair == "a":
        return dataclasses.replace(seen, a=dataclasses.replace(seen.a, rows=2 * seen.a.rows))
    if pair == "b":
        return dataclasses.replace(seen, b=dataclasses.replace(seen.b, cols=2 * seen.b.cols))
    return seen


def _seen(setting: Setting) -> Seen:
    a, b = (x.load == "shift" for x in setting.loads.operands)
    return Seen((a, b), setting.gates, setting.halves)


def _loads(setting: Setting) -> list[Load]:
    """How each operand arrives."""
    found = []
    for operand in setting.loads.operands:
        copied = sum(x.source.bytes for x in setting.loads.copies if x.operand == operand.role)
        found.append(Load(operand.load, operand.dtype.bytes, copied))
    return found


__all__ = ["options", "predicted"]
