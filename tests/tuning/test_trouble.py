# SPDX-License-Identifier: Apache-2.0
"""A tuner whose kernels, clock or user fail it: nothing wrong is kept, and other problems go on."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math

import pytest
from rich.console import Console

import cutegemm
from cutegemm import problem
from cutegemm.compiling import kernel_cache
from cutegemm.database import Database, key_of
from cutegemm.errors import CompileError
from cutegemm.tuning import tuner as tuning
from cutegemm.tuning.tuner import Tuner
from tests.support.fake_bench import FakeBench
from tests.support.fake_tuner import OF, OTHER, QUICK, SPEC, fake_tuner, go


@pytest.fixture
def tuner(tmp_path, monkeypatch):
    """A tuner whose kernels are not compiled."""
    return fake_tuner(tmp_path, monkeypatch)


def known(tuner, of=OF):
    """What the database holds of a problem."""
    return tuner.database.get(key_of(SPEC, of, tuner.bench.record))


def unclaimed(tuner, of=OF):
    """Whether another process could claim a problem."""
    with tuner.database.claimed(key_of(SPEC, of, tuner.bench.record)) as claimed:
        return claimed


def fails(*args, **kwargs):
    """Compiles nothing."""
    raise CompileError("ptxas died")


def test_a_mutated_kernel_does_not_win(tmp_path, monkeypatch):
    """Of compiled kernels the fastest has one instruction changed: it is wrong, and the model's choice stays."""
    real = kernel_cache.artifact

    def mutated(config, **options):
        found = real(config, **options)
        if not config.streamed:
            return found
        # of one of a thread's sums, by alpha
        ptx = found.ptx.replace("mul.f32", "add.f32", 1)
        assert ptx != found.ptx
        return dataclasses.replace(found, ptx=ptx)

    monkeypatch.setattr(kernel_cache, "artifact", mutated)
    bench = FakeBench(lambda plan: 1e-6 if plan.config.streamed else 2e-6, "emulator")
    database, of = Database(tmp_path / "t.sqlite"), problem(136, 64, 40)
    silent = Console(file=io.StringIO())
    report = cutegemm.tune(
        SPEC, [of], bench=bench, candidates=2, regime=QUICK, console=silent, database=database
    )
    (outcome,) = report.outcomes
    assert outcome.entry.fields.get("scheduler") is None and outcome.entry.us == pytest.approx(2.0)
    trials = database.trials(key_of(SPEC, of, bench.record))
    assert [x.outcome for x in trials.values() if x.outcome != "timed"] == ["wrong"]


def test_an_empty_product_is_refused(tuner):
    """Where nothing is launched nothing is tuned, and the next problem is."""
    first, second = go(tuner, problem(0, 64, 64), OF)
    assert first.status == "refused" and first.why == "nothing is launched, D is empty"
    assert second.status == "tuned"


def test_more_candidates_than_before_are_tried(tuner):
    """A problem that had all that were wanted goes on where more are wanted, against its winner, and then is known."""
    few = dataclasses.replace(tuner, most=2)
    assert go(few, OF)[0].entry.tried == 2 and go(few, OF)[0].status == "known"
    before = len(tuner.bench.log)
    (outcome,) = go(tuner, OF)
    assert (
        outcome.status == "tuned" and outcome.entry.tried > 5 and outcome.entry.fields["raster"] == ["m", 16]
    )
    assert "('m', 4)" in tuner.bench.log[before:]
    assert [x.status for x in (*go(tuner, OF), *go(few, OF))] == ["known", "known"]
    # what came from elsewhere brings no trials: as many candidates as there are were tried there
    key = key_of(SPEC, OF, tuner.bench.record)
    tuner.database.forget_trials(key)
    assert go(tuner, OF)[0].status == "known"
    tuner.database.put(key, dataclasses.replace(known(tuner), tried=3))
    assert go(tuner, OF)[0].status == "tuned"


@pytest.mark.parametrize("seconds", [0.0, math.nan, math.inf, -1e-6])
def test_a_time_that_is_none_costs_its_candidate(tuner, seconds):
    """What the clock does not tell is no time to win by."""
    real = tuner.bench.time

    def time(work, on_wait=None):
        found = real(work, on_wait)
        return seconds if tuner.bench.log[-1] == "('m', 16)" else found

    tuner.bench.time = time
    (outcome,) = go(tuner, OF)
    assert outcome.status == "tuned" and outcome.entry.fields["raster"] == ["m", 4]
    said = [
        x
        for x in tuner.database.trials(key_of(SPEC, OF, tuner.bench.record)).values()
        if x.outcome == "refused"
    ]
    assert [x.why for x in said] == [f"a call was timed at {seconds} s"]


def test_a_clock_that_fails_later_ends_the_call(tuner, monkeypatch):
    """A sample that is no number is never kept: the call ends, the problem is free, its entry what it was."""
    monkeypatch.setattr(tuning, "BATCH", 1)
    go(dataclasses.replace(tuner, batches=1), OF)
    before, real, race = known(tuner), tuner.bench.time, tuning.race

    def broken(*args, **kwargs):
        tuner.bench.time = lambda *x: math.nan
        return race(*args, **kwargs)

    monkeypatch.setattr(tuning, "race", broken)
    with pytest.raises(RuntimeError, match="a call was timed at nan s"):
        go(tuner, OF)
    tuner.bench.time = real
    assert known(tuner) == before and unclaimed(tuner)


def test_a_tried_kernel_that_no_longer_compiles_costs_itself(tuner, monkeypatch):
    """Of an unfinished problem one candidate's kernel has gone: the others are raced."""
    monkeypatch.setattr(tuning, "BATCH", 1)
    go(dataclasses.replace(tuner, batches=4), OF)
    real, prepare = tuning._ptx, tuning.prepare

    def ptx(plan):
        return fails() if plan.config.streamed else real(plan)

    def prepared(spec, *args, **kwargs):
        return fails() if spec.scheduler == "stream_k" else prepare(spec, *args, **kwargs)

    monkeypatch.setattr(tuning, "_ptx", ptx)
    monkeypatch.setattr(tuning, "prepare", prepared)
    (outcome,) = go(tuner, OF)
    assert outcome.status == "tuned" and outcome.entry.fields["raster"] == ["m", 16]
    trials = tuner.database.trials(key_of(SPEC, OF, tuner.bench.record)).values()
    assert {x.outcome for x in trials} == {"timed", "does not compile"}


def test_what_was_refused_counts_as_tried(tuner, monkeypatch):
    """Where the last batches serve nothing, all that were wanted were tried all the same."""
    monkeypatch.setattr(tuning, "BATCH", 1)
    prepare, race, races = tuning.prepare, tuning.race, []
    monkeypatch.setattr(tuning, "race", lambda *x, **y: races.append(1) or race(*x, **y))
    monkeypatch.setattr(tuning, "prepare", lambda *x, **y: (fails if len(races) > 1 else prepare)(*x, **y))
    (outcome,) = go(tuner, OF)
    assert len(races) == 2 and outcome.status == "tuned" and outcome.entry.tried == 6 == known(tuner).tried


def test_where_nothing_serves_any_more_nothing_is_tuned(tuner, monkeypatch):
    """An expired entry stays what it is, and the problem is refused."""
    go(tuner, OF)
    expired = dataclasses.replace(known(tuner), made_with="expired")
    tuner.database.put(key_of(SPEC, OF, tuner.bench.record), expired)
    monkeypatch.setattr(tuning, "prepare", fails)
    (outcome,) = go(tuner, OF)
    assert outcome.status == "refused" and outcome.why == "no candidate was right" and known(tuner) == expired


def test_where_the_first_candidates_are_wrong_others_are_left(tuner, monkeypatch):
    """A call that ends after them refuses nothing, and the next ones go on; beside an expired entry none could."""
    monkeypatch.setattr(tuning, "BATCH", 2)
    one, prepare = dataclasses.replace(tuner, batches=1), tuning.prepare
    monkeypatch.setattr(tuning, "prepare", fails)
    (outcome,) = go(one, OF)
    assert (outcome.status, outcome.why) == ("begun", "no candidate was right so far")
    assert known(tuner) is None
    monkeypatch.setattr(tuning, "prepare", prepare)
    assert go(tuner, OF)[0].status == "tuned" and known(tuner).tried == 5
    tuner.database.put(
        key_of(SPEC, OF, tuner.bench.record), dataclasses.replace(known(tuner), made_with="expired")
    )
    monkeypatch.setattr(tuning, "prepare", fails)
    assert go(one, OF)[0].status == "refused"


def test_ctrl_c_is_heard_among_those_at_work_elsewhere(tuner, monkeypatch):
    """They are looked at once more at the end: Ctrl-C leaves them all, not one."""
    calls = itertools.count()

    @contextlib.contextmanager
    def elsewhere(*args):
        if next(calls) == 2:
            raise KeyboardInterrupt
        yield False

    monkeypatch.setattr(Database, "claimed", elsewhere)
    assert [x.status for x in go(tuner, OF, OTHER)] == ["interrupted"]


@pytest.mark.parametrize("place", ["_valid", "claimed", "proposals"])
def test_ctrl_c_is_heard_anywhere(tuner, monkeypatch, place):
    """Also while an entry's kernel is compiled, or as the problem is claimed: the report says so, the claim is gone."""
    go(tuner, OF)
    of, calls = OF if place == "_valid" else OTHER, itertools.count()
    owner = Database if place == "claimed" else Tuner
    real = getattr(owner, place)

    def stopped(*args, **kwargs):
        found = real(*args, **kwargs)
        if next(calls) == 0:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, place, stopped)
    try:
        (outcome,) = go(tuner, of, problem(1088, 384, 64))
    except KeyboardInterrupt:
        # which would end the tests
        pytest.fail("it is not heard")
    assert outcome.status == "interrupted" and outcome.entry == known(tuner, of)
    assert unclaimed(tuner, of)
