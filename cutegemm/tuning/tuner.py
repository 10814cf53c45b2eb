# SPDX-License-Identifier: Apache-2.0
"""The tuner: problem by problem, in batches of candidates; the database is updated after every batch."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from cutegemm.compiling import kernel_cache
from cutegemm.config import Config
from cutegemm.database.choice import find
from cutegemm.database.entry import Entry, Key, config_digest, digest, key_of, refined
from cutegemm.database.user_database import BROKE_OFF, RUNNING, Database, Trial
from cutegemm.errors import CompileError, GemmError
from cutegemm.planning.planner import plan
from cutegemm.planning.why import fields_of
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.problems import Problem
from cutegemm.request.requirements import requested
from cutegemm.running.run import prepare
from cutegemm.spec import GemmSpec
from cutegemm.tuning.gpu import Bench
from cutegemm.tuning.outcomes import BEGUN, ELSEWHERE, INTERRUPTED, KNOWN, REFUSED, TUNED, Outcome, Screen
from cutegemm.tuning.proposals import Fields, Proposal, explicit, proposals, under
from cutegemm.tuning.race import Regime, Times, race, wins
from cutegemm.tuning.random_operands import Operands, operands
from cutegemm.tuning.timing import Sampler
from cutegemm.tuning.trial import Oracle

# candidates compiled and timed together: each holds a CUDA graph, and an interruption loses one batch
BATCH = 12
# longest time in seconds until the next report: while a batch compiles, and otherwise
COMPILE_SECONDS, STEP_SECONDS = 300.0, 60.0
Compile = Callable[[Iterable[Config]], None]
Seeds = Callable[[Problem], Sequence[Fields]]


@dataclass(frozen=True)
class Tuner:
    """Tunes problems of one spec on one GPU."""

    spec: GemmSpec  # its unspecified fields are tuned
    bench: Bench  # runs the candidates
    database: Database  # stores and shares results
    most: int  # candidates per problem
    regime: Regime  # of timing
    compile: Compile = functools.partial(kernel_cache.ensure, warn=False)  # compiles kernels in parallel
    batches: int | None = None  # the most that are measured per problem in one call; None is all
    until: float = math.inf  # no batch starts after this time of `time.monotonic`
    seeds: Seeds = lambda problem: ()  # fields to try for a problem before the model's order, best first
    resumed: Collection[Problem] = frozenset()  # problems whose trials count although they are measured again

    @property
    def late(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() >= self.until

    def tune(self, problem: Problem, screen: Screen, *, again: bool = False) -> Outcome:
        """Tune one problem, unless it is tuned already or another process works on it."""
        key = key_of(self.spec, problem, self.bench.record)
        try:
            known = self.database.get(key)
            if not again and known is not None and self.done(known, problem):
                return Outcome(problem, KNOWN, known)
            if self.late:
                return Outcome(problem, BEGUN, known, "no time was left")
            with self.database.claimed(key) as claimed:
                if not claimed:
                    return Outcome(problem, ELSEWHERE, known)
                anew = again and problem not in self.resumed
                if anew or (known is not None and known.complete and not self._valid(known, problem)):
                    self.database.forget_trials(key)
                return self._tuned(key, problem, None if again else known, screen)
        except KeyboardInterrupt:
            return Outcome(problem, INTERRUPTED, self.database.get(key))
        except GemmError as error:
            return Outcome(problem, REFUSED, why=str(error))
        except torch.OutOfMemoryError as error:
            return Outcome(problem, REFUSED, why=f"it does not fit in the GPU's memory: {_first_line(error)}")

    def done(self, entry: Entry, problem: Problem) -> bool:
        """Whether all candidates of a problem were tried, as many as are wanted now, and its kernel has not changed."""
        if not entry.complete or not self._valid(entry, problem):
            return False
        if entry.tried >= self.most:
            return True
        key = key_of(self.spec, problem, self.bench.record)
        own, *others = self.proposals(problem, [entry.fields, *self._first(key)])
        # an imported entry has no trials, only their number
        return 1 + len(others) <= entry.tried or {x.name for x in others} <= self._done(key, others)

    def _valid(self, entry: Entry, problem: Problem) -> bool:
        """Whether an entry's fields still give the kernel that was measured."""
        try:
            config = plan(refined(self.spec, entry.fields), problem, self.bench.record).config
            return config is not None and not entry.expired(config, kernel_cache.artifact(config).ptx)
        except (GemmError, TypeError):
            return False

    def _tuned(self, key: Key, problem: Problem, known: Entry | None, screen: Screen) -> Outcome:
        """Try the remaining candidates, batch by batch."""
        first = self._first(key)
        own, *others = self.proposals(problem, first)
        if own.plan.config is None:
            return Outcome(problem, REFUSED, why="nothing is launched, D is empty")
        leader = self._leader(known, problem, own, others)
        screen.report(problem, "drawing operands", within=STEP_SECONDS)
        ground = _Ground(self, problem)
        tried: set[str] = set()
        best: Entry | None = None
        for number in itertools.count():
            # variants of the leader come before the model's next candidates
            own, *others = self.proposals(problem, [leader.fields, *first])
            broken = self._broken(key, (own, *others))
            tried |= self._done(key, others) | broken
            left = [x for x in others if x.name not in tried][: max(0, self.most - len(tried))]
            if number and (not left or self.late or number == self.batches):
                break
            group = list({x.name: x for x in (own, leader, *left[:BATCH]) if x.name not in broken}.values())
            tried |= {x.name for x in group}
            ready = ground.ready(key, group, screen)
            if not ready:
                continue
            if leader.name not in ready:
                leader = next(x for x in group if x.name in ready)
            times = self._timed(problem, ready, leader, screen)
            self._keep(key, group, times)
            leader = _faster(group, leader, times)
            model = times.get(own.name, times[leader.name])
            best = self._entry(leader, times[leader.name], model, len(tried))
            self.database.put(key, best)
        # a complete but expired entry makes every call start over, so "begun" would never end
        if left and (best is not None or known is None or not known.complete):
            return Outcome(problem, BEGUN, best, "" if best else "no candidate was right so far")
        if best is None:
            return Outcome(problem, REFUSED, why="no candidate was right")
        best = dataclasses.replace(best, complete=True, tried=len(tried))
        self.database.put(key, best)
        return Outcome(problem, TUNED, best)

    def proposals(self, problem: Problem, first: Sequence[Fields], more: int = 0) -> list[Proposal]:
        """The candidates of a problem: `first`, seeds, and the model's (`proposals.proposals`)."""
        return proposals(self.spec, problem, self.bench.record, more or self.most, first, self.seeds(problem))

    def _first(self, key: Key) -> list[Fields]:
        """The fields of the database entry, also of an expired one."""
        entry, _ = find(key, self.database)
        return [] if entry is None else [entry.fields]

    def _done(self, key: Key, others: Sequence[Proposal]) -> set[str]:
        """Candidates that were tried with their current kernels."""
        trials = self.database.trials(key)
        done = set()
        for x in others:
            trial = trials.get(x.name)
            if trial is not None and (not trial.ptx or trial.ptx == _ptx_or_none(x.plan)):
                done.add(x.name)
        return done

    def _broken(self, key: Key, all_of_them: Sequence[Proposal]) -> set[str]:
        """Candidates whose first run ended a process; they are not tried again until their kernels change."""
        trials = self.database.trials(key)
        ended = {name: x for name, x in trials.items() if x.outcome in (RUNNING, BROKE_OFF)}
        broken = {
            x.name for x in all_of_them if x.name in ended and ended[x.name].ptx == _ptx_or_none(x.plan)
        }
        for name in broken:
            why = ended[name].why or "the process ended while it ran for the first time"
            self.database.tried(key, name, Trial(BROKE_OFF, why=why, ptx=ended[name].ptx))
        return broken

    def _leader(
        self, known: Entry | None, problem: Problem, own: Proposal, others: Sequence[Proposal]
    ) -> Proposal:
        """The first leader: the winner of an earlier call that is continued, or the model's choice."""
        if known is None or not self._valid(known, problem):
            return own
        return next((x for x in others if dict(x.fields) == dict(known.fields)), own)

    def _timed(
        self, problem: Problem, ready: dict[str, Sampler], leader: Proposal, screen: Screen
    ) -> dict[str, Times]:
        def report() -> None:
            best = min((x for x in ready.values() if x.us), key=lambda x: min(x.us))
            screen.report(problem, f"best so far {min(best.us):,.1f} us, {best.name}", within=STEP_SECONDS)

        screen.report(problem, f"timing {len(ready)} candidates", within=STEP_SECONDS)
        return race(list(ready.values()), self.bench, self.regime, stays=leader.name, on_round=report)

    def _keep(self, key: Key, group: Sequence[Proposal], times: dict[str, Times]) -> None:
        """Store the trial of each timed candidate."""
        for x in group:
            if x.name in times:
                trial = Trial("timed", times[x.name].median, ptx=_ptx(x.plan), made=fields_of(x.plan))
                self.database.tried(key, x.name, trial)

    def _entry(self, leader: Proposal, times: Times, model: Times, tried: int) -> Entry:
        config = leader.plan.config
        assert config is not None
        now = datetime.datetime.now(datetime.timezone.utc)
        return Entry(
            fields=explicit(self.spec, leader), config=config_digest(config), ptx=_ptx(leader.plan), us=times.median,
            spread=times.spread, model_us=model.median, tried=tried, complete=False,
            date=now.isoformat(timespec="seconds"), made_with=self.bench.versions(),
        )  # fmt: skip


class _Ground:
    """One problem's operands and oracle; checks candidates and prepares their timing."""

    def __init__(self, tuner: Tuner, problem: Problem) -> None:
        self._tuner, self._problem, bench = tuner, problem, tuner.bench
        request, _ = requested(tuner.spec, problem, bench.record)
        self._graph = request.epilogue
        first = operands(problem, self._graph, bench.memory)
        # enough sets that a launch finds none of its operands in L2
        count = max(2, math.ceil(2 * bench.record.l2_bytes / max(1, first.bytes)))
        self._sets: list[Operands] = [first]
        self._sets += [operands(problem, self._graph, bench.memory, seed) for seed in range(1, count)]
        self._oracle = Oracle(self._graph, first)

    def ready(self, key: Key, group: Sequence[Proposal], screen: Screen) -> dict[str, Sampler]:
        """The candidates of a group that compile and are right, ready to be timed; the trials of the others are stored.

        During its first run a candidate is stored as "running", so that it is not tried again if it ends the process.

        Raises:
            RuntimeError: a candidate left the device unusable.
        """
        tuner = self._tuner
        screen.report(self._problem, f"compiling {len(group)} candidates", within=COMPILE_SECONDS)
        with contextlib.suppress(CompileError):
            # the loop below finds whose kernel it is
            tuner.compile([step.config for x in group for step in x.plan.steps])
        ready, before = {}, tuner.database.trials(key)
        for x in group:
            screen.report(self._problem, f"checking {_named(x)}", within=STEP_SECONDS)
            ptx, trial = _ptx_or_none(x.plan), None
            if ptx is not None:
                tuner.database.tried(key, x.name, Trial(RUNNING, ptx=ptx))
            try:
                trial = self._trial(x)
            except RuntimeError as error:
                broke = not tuner.bench.sound()
                trial = Trial(BROKE_OFF if broke else "refused", why=_first_line(error), ptx=ptx or "")
                if broke:
                    raise
            finally:
                # also after Ctrl-C
                kept = trial if isinstance(trial, Trial) else before.get(x.name)
                if kept is None:
                    tuner.database.forget_trials(key, x.name)
                else:
                    tuner.database.tried(key, x.name, kept)
            if isinstance(trial, Sampler):
                ready[x.name] = trial
        return ready

    def _trial(self, x: Proposal) -> Sampler | Trial:
        tuner, first = self._tuner, self._sets[0]
        record = tuner.bench.record
        try:
            prepared = prepare(
                under(tuner.spec, x), self._graph, first.order, first.given, tuner.bench.backend,
                planner=lambda spec, problem, device: plan(spec, problem, record),
            )  # fmt: skip
            wrong = self._oracle.complaint(prepared)
        except CompileError as error:
            return Trial("does not compile", why=str(error))
        except (GemmError, torch.OutOfMemoryError) as error:
            return Trial("refused", why=f"{type(error).__name__}: {error}")
        if wrong is not None:
            return Trial("wrong", why=wrong, ptx=_ptx(x.plan))
        one_pass = tuner.bench.one_pass(prepared, self._sets)
        sample = tuner.regime.sample_of(self._problem.flops)
        return Sampler(x.name, one_pass, len(self._sets), tuner.bench, sample)


def _faster(group: Sequence[Proposal], leader: Proposal, times: dict[str, Times]) -> Proposal:
    """The fastest candidate that was timed in all rounds if it clearly beats the leader, else the leader."""
    rounds = len(times[leader.name].us)
    stayed = {name for name, x in times.items() if len(x.us) == rounds}
    best = min((x for x in group if x.name in stayed), key=lambda x: times[x.name].median)
    return best if best is not leader and wins(times[best.name], times[leader.name]) else leader


def _ptx(made: KernelPlan) -> str:
    assert made.config is not None
    return digest(kernel_cache.artifact(made.config).ptx)


def _ptx_or_none(made: KernelPlan) -> str | None:
    """The digest of a plan's PTX; None if it does not compile."""
    try:
        return _ptx(made)
    except CompileError:
        return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _named(x: Proposal) -> str:
    return "the model's choice" if not x.fields else x.name


def each(tuner: Tuner, problems: Sequence[Problem], screen: Screen, again: bool) -> Iterator[Outcome]:
    """The outcome of each problem; problems at work elsewhere are tried once more at the end. Ctrl-C ends it."""
    waiting: list[Problem] = []
    with tuner.database.kept_open():
        for group, once_more in ((problems, False), (waiting, True)):
            for problem in group:
                outcome = tuner.tune(problem, screen, again=again and not once_more)
                if outcome.status == ELSEWHERE and not once_more:
                    waiting.append(problem)
                    continue
                screen.done(outcome)
                yield outcome
                if outcome.status == INTERRUPTED or (outcome.status == BEGUN and tuner.late):
                    return
