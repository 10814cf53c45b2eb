# SPDX-License-Identifier: Apache-2.0
"""The tuner on a fake GPU: only what is right wins, and clearly; everything is kept, shared and resumed."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
import torch
from rich.console import Console

import cutegemm
from cutegemm import GemmSpec, problem
from cutegemm.compiling import kernel_cache
from cutegemm.database import Database, choose, key_of
from cutegemm.database.entry import config_digest, refined
from cutegemm.database.user_database import Trial
from cutegemm.errors import CompileError, HardwareError
from cutegemm.tuning import proposals as proposing
from cutegemm.tuning import tuner as tuning
from tests.support.fake_bench import FakeBench
from tests.support.fake_tuner import COSTS, OF, OTHER, OWN, QUICK, SPEC, fake_tuner, go


@pytest.fixture
def tuner(tmp_path, monkeypatch):
    """A tuner whose kernels are not compiled."""
    return fake_tuner(tmp_path, monkeypatch)


def test_the_fastest_is_kept_and_build_takes_it(tuner):
    """The fastest raster is the entry; its times are those of the clock, the model's choice beside it."""
    (outcome,) = go(tuner, OF)
    entry = outcome.entry
    assert outcome.status == "tuned" and entry.fields["raster"] == [*("m", 16)] and entry.complete
    assert entry.us == pytest.approx(2.0) and entry.model_us == pytest.approx(4.0) and entry.tried == 6
    assert "tuned, 2.0 us, 2.000 x the model's choice" in str(outcome)
    chosen = choose(SPEC, OF, tuner.bench.record, tuner.database).plan
    assert chosen.raster == ("m", 16) and chosen.chosen_by.startswith("database (")
    # known: nothing is measured again, unless it is asked for
    before = len(tuner.bench.log)
    assert [x.status for x in go(tuner, OF)] == ["known"] and len(tuner.bench.log) == before
    assert [x.status for x in go(tuner, OF, again=True)] == ["tuned"] and len(tuner.bench.log) > before


def test_what_is_wrong_never_wins(tuner, monkeypatch):
    """A candidate that leaves poison, errs, or gives other bits on a second run is not timed, and that is kept."""
    real = tuning.prepare
    faults = {("m", 16): "nothing", ("m", 4): "off", ("n", 8): "unsteady"}
    runs = []

    def prepare(*args, **kwargs):
        prepared = real(*args, **kwargs)
        fault = faults.get(prepared.kind.plan.raster)

        class Faulty:
            kind = prepared.kind

            def __call__(self, given, places, numbers, workspace):
                if fault == "nothing":
                    return given[2]
                out = prepared(given, places, numbers, workspace)
                runs.append(1)
                if fault == "off":
                    out[5, 5] += 1
                if fault == "unsteady" and len(runs) % 2:
                    # within the bound, but another number
                    out[0, 0] = (
                        torch.nextafter(out[0, 0].float(), torch.tensor(9e9)).to(out.dtype) + 0 * out[0, 0]
                    )
                    out.view(torch.int16)[0, 0] ^= 1
                return out

        return Faulty()

    monkeypatch.setattr(tuning, "prepare", prepare)
    (outcome,) = go(tuner, OF)
    assert outcome.entry.fields == OWN and outcome.entry.us == pytest.approx(4.0)
    said = [
        x
        for x in tuner.database.trials(key_of(SPEC, OF, tuner.bench.record)).values()
        if x.outcome == "wrong"
    ]
    assert len(said) == 3 and sum("elements are off" in x.why for x in said) >= 2


def test_a_win_is_by_more_than_the_spread(tuner, monkeypatch):
    """A candidate that is 1 % faster in the mean of samples that differ by 4 % leaves the model's choice."""
    monkeypatch.setitem(COSTS, ("m", 16), 3.96e-6)
    monkeypatch.setitem(COSTS, ("m", 4), 4.1e-6)
    drift = iter(range(10**9))
    real = tuner.bench.time

    def noisy(work, on_wait=None):
        return real(work, on_wait) * (1 + 0.04 * (next(drift) % 3))

    tuner.bench.time = noisy
    assert go(tuner, OF)[0].entry.fields == OWN


def test_an_interrupted_problem_goes_on_where_it_stopped(tuner, monkeypatch):
    """Ctrl-C keeps the best so far and gives the problem free; the next call tries what was left, against the best."""
    monkeypatch.setattr(tuning, "BATCH", 1)
    real, races = tuning.race, []

    def stopped(*args, **kwargs):
        if len(races) == 2:
            raise KeyboardInterrupt
        races.append([x.name for x in args[0]])
        return real(*args, **kwargs)

    monkeypatch.setattr(tuning, "race", stopped)
    outcomes = go(tuner, OF, OTHER)
    assert [x.status for x in outcomes] == ["interrupted"]
    assert outcomes[0].entry.us == pytest.approx(2.0) and not outcomes[0].entry.complete

    def raced(*args, **kwargs):
        races.append([x.name for x in args[0]])
        return real(*args, **kwargs)

    monkeypatch.setattr(tuning, "race", raced)
    (resumed,) = go(tuner, OF)
    assert (
        resumed.status == "tuned" and resumed.entry.complete and resumed.entry.fields["raster"] == ["m", 16]
    )
    assert resumed.entry.tried == 6 and len(races) == 5
    # each candidate came once, and beside it the model's choice and who led
    assert ['"raster": ["m", 4]' in str(x) for x in races] == [True, True, False, False, False]
    assert all(x[0] == "{}" for x in races) and all('"raster": ["m", 16]' in x[1] for x in races[2:])


def test_what_was_tried_with_another_kernel_is_tried_again(tuner, monkeypatch):
    """Of an unfinished problem, trials whose kernel has changed since do not count."""
    go(tuner, OF)
    key = key_of(SPEC, OF, tuner.bench.record)
    tuner.database.put(key, dataclasses.replace(tuner.database.get(key), complete=False))
    assert go(tuner, OF)[0].entry.tried == 6
    before = tuner.bench.log.copy()
    tuner.database.put(key, dataclasses.replace(tuner.database.get(key), complete=False))
    monkeypatch.setattr(tuning, "_ptx", lambda plan: "changed")
    go(tuner, OF)
    assert "('n', 8)" in tuner.bench.log[len(before) :]


def test_what_ended_a_process_is_not_tried_again(tuner, monkeypatch):
    """What ran when a process died, or broke the device, is left out until its kernel is another."""
    real, stop = tuning.prepare, []

    def prepare(spec, *args, **kwargs):
        if spec.raster == ("m", 16):
            stop.append(1)
            # the first time as if killed: nothing is tidied up; then as an illegal access
            raise SystemExit if len(stop) == 1 else RuntimeError("CUDA error: an illegal memory access\nmore")
        return real(spec, *args, **kwargs)

    monkeypatch.setattr(tuning, "prepare", prepare)
    key = key_of(SPEC, OF, tuner.bench.record)
    forget = Database.forget_trials
    with monkeypatch.context() as dying:
        dying.setattr(Database, "forget_trials", lambda *x: None if '["m", 16]' in x[2] else forget(*x))
        with pytest.raises(SystemExit):
            go(tuner, OF)
    assert [x.outcome for x in tuner.database.trials(key).values()].count("running") == 1
    outcome = go(tuner, OF)[0]
    assert outcome.status == "tuned" and outcome.entry.fields["raster"] == ["m", 4] and len(stop) == 1
    (broke,) = [x for x in tuner.database.trials(key).values() if x.outcome == "broke off"]
    assert broke.why == "the process ended while it ran for the first time"
    # another kernel is another candidate; what breaks the device ends the call, and frees the problem
    monkeypatch.setattr(tuning, "_ptx", lambda plan: "changed")
    tuner.bench.sound = lambda: False
    with pytest.raises(RuntimeError, match="illegal memory access"):
        go(tuner, OF, again=True)
    with tuner.database.claimed(key) as claimed:
        assert len(stop) == 2 and claimed
    broke = [x.why for x in tuner.database.trials(key).values() if x.outcome == "broke off"]
    assert broke == ["CUDA error: an illegal memory access"]


def test_the_models_choice_may_break_off_too(tuner, monkeypatch):
    """Where it is the model's own choice that ended a process, the others are raced without it."""
    key, real, seen = key_of(SPEC, OF, tuner.bench.record), tuning.prepare, []
    own = cutegemm.plan(SPEC, OF, tuner.bench.record, database=False)
    tuner.database.tried(key, "{}", Trial("running", ptx=config_digest(own.config)))

    def prepare(spec, *args, **kwargs):
        seen.append(spec)
        return real(spec, *args, **kwargs)

    monkeypatch.setattr(tuning, "prepare", prepare)
    (outcome,) = go(tuner, OF)
    assert outcome.entry.fields["raster"] == ["m", 16] and outcome.entry.model_us == outcome.entry.us
    assert SPEC not in seen and tuner.database.trials(key)["{}"].outcome == "broke off"


def test_an_error_that_the_device_survives_refuses_its_candidate(tuner, monkeypatch):
    """A launch that fails, or what does not fit, costs one candidate; operands that do not fit cost the problem."""
    real = tuning.prepare

    def prepare(spec, *args, **kwargs):
        if spec.raster == ("m", 16):
            raise RuntimeError("invalid configuration")
        if spec.raster == ("m", 4):
            raise torch.OutOfMemoryError("no room")
        return real(spec, *args, **kwargs)

    monkeypatch.setattr(tuning, "prepare", prepare)
    assert go(tuner, OF)[0].entry.fields == OWN
    trials = tuner.database.trials(key_of(SPEC, OF, tuner.bench.record)).values()
    said = {x.why for x in trials if x.outcome == "refused"}
    assert {"invalid configuration", "OutOfMemoryError: no room"} <= said

    def none(*args):
        raise torch.OutOfMemoryError("80 GB")

    monkeypatch.setattr(tuning, "operands", none)
    (outcome,) = go(tuner, OTHER)
    assert outcome.status == "refused" and outcome.why == "it does not fit in the GPU's memory: 80 GB"


def test_a_call_ends_in_time_and_the_next_goes_on(tuner, monkeypatch):
    """Of one batch, or of no time, a problem is begun; further calls go on with what was not tried."""
    monkeypatch.setattr(tuning, "BATCH", 1)
    one = dataclasses.replace(tuner, batches=1)
    assert [x.status for x in go(one, OF, OTHER)] == ["begun", "begun"]
    tried = [go(one, OF)[0] for _ in range(4)]
    assert [x.entry.tried for x in tried] == [3, 4, 5, 6] and tried[-1].status == "tuned"
    late = dataclasses.replace(tuner, until=0.0)
    assert [(x.problem, x.status) for x in go(late, OF, OTHER)] == [(OF, "known"), (OTHER, "begun")]
    assert [x.status for x in go(tuner, OF, OTHER)] == ["known", "tuned"]


def test_a_problem_is_tuned_by_one(tuner):
    """A claimed problem is left to its process and tried once more at the end; afterwards it is free."""
    with tuner.database.claimed(key_of(SPEC, OF, tuner.bench.record)):
        assert [(x.problem, x.status) for x in go(tuner, OF, OTHER)] == [(OTHER, "tuned"), (OF, "elsewhere")]
    assert [x.status for x in go(tuner, OF, OTHER)] == ["tuned", "known"]


def test_an_expired_entry_is_measured_again_and_tried_first(tuner):
    """What was best before the kernel changed is the first candidate beside the model's choice."""
    go(tuner, OF)
    key = key_of(SPEC, OF, tuner.bench.record)
    tuner.database.put(key, dataclasses.replace(tuner.database.get(key), made_with="expired"))
    (outcome,) = go(dataclasses.replace(tuner, most=2), OF)
    assert (
        outcome.status == "tuned" and outcome.entry.fields["raster"] == ["m", 16] and outcome.entry.tried == 2
    )


def test_what_is_refused_or_does_not_compile_is_kept(tuner, monkeypatch):
    """A kernel that does not compile is no candidate; a problem that the spec cannot serve is refused by its rule."""
    real = tuning.prepare

    def prepare(spec, *args, **kwargs):
        if spec.scheduler == "stream_k":
            raise CompileError("ptxas died")
        return real(spec, *args, **kwargs)

    monkeypatch.setattr(tuning, "prepare", prepare)
    first, second = go(tuner, OF, problem(64, 64, 64, dtype="fp32"))
    assert first.status == "tuned" and second.status == "refused" and "fp32 operands" in second.why
    trials = tuner.database.trials(key_of(SPEC, OF, tuner.bench.record))
    assert [x.why for x in trials.values() if x.outcome == "does not compile"] == ["ptxas died"] * 2


def test_proposals_are_different_kernels_best_predicted_first(tuner):
    """The model's choice, then what is to be tried first, then by predicted time; no plan twice, given fields kept."""
    asked = GemmSpec(stages=3), problem(4096, 4096, 4096), tuner.bench.record
    other = {"swap": not proposing.proposals(*asked, 1)[0].plan.swapped}
    found = proposing.proposals(*asked, 20, [other])
    assert found[0].fields == {} and found[1].fields == other and len(found) == 20
    plain = [x.us for x in found[2:] if not {"raster", "scheduler", "trigger"} & set(x.fields)]
    assert plain == sorted(plain) and all(x.plan.config.stages == 3 for x in found)
    assert len({proposing._kernels(x.plan) for x in found}) == 20
    both = proposing.proposals(GemmSpec(), problem(64, 4096, 4096), tuner.bench.record, 40)
    assert {x.plan.swapped for x in both} == {True, False}


@pytest.mark.skipif(torch.cuda.is_available(), reason="tunes on the GPU")
def test_without_a_gpu_nothing_is_tuned():
    """It says what it needs; `tests/contract` has what its arguments may not be."""
    with pytest.raises(HardwareError, match="^tuning times kernels on a Hopper GPU"):
        cutegemm.tune(SPEC, [OF])


def test_a_gemm_tunes_itself_with_real_kernels(tmp_path, monkeypatch):
    """Compiled kernels, proved right by the emulator; the `Gemm` then takes what was found."""
    stored = kernel_cache.directory()
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    (tmp_path / "kernels").symlink_to(stored)
    of = problem(136, 64, 40)
    gemm = cutegemm.Gemm(SPEC, of)
    bench = FakeBench(lambda plan: 1e-6 if plan.config.streamed else 2e-6, "emulator")
    report = gemm.tune([of], bench=bench, candidates=2, regime=QUICK, console=Console(file=io.StringIO()))
    assert [x.status for x in report.outcomes] == ["tuned"] and not report.interrupted
    entry = report.outcomes[0].entry
    assert (
        entry.fields["scheduler"] == "stream_k"
        and gemm.plan.config.streamed
        and "tuned, 1.0 us" in str(report)
    )
    assert "chosen by: database (" in gemm.explain() and "expired" not in gemm.explain()
    assert [x.status for x in gemm.tune(bench=bench, regime=QUICK).outcomes] == ["known"]


@pytest.mark.parametrize(
    "of",
    [
        problem(4096, 4096, 4096),
        problem(16, 4096, 14336),
        problem(256, 256, 32768),
        problem(1023, 1023, 1023),
        problem(1, 4097, 4095),
        problem(1024, 1024, 1024),
    ],
    ids=lambda of: f"{of.m}x{of.n}x{of.k}",
)
def test_an_entry_names_its_kernel_whatever_the_model_says(of):
    """The model's choice is kept by its fields: under a model that chooses otherwise they give the same kernel."""
    device = FakeBench.record
    own = proposing.proposals(GemmSpec(), of, device, 1)[0]
    fields = json.loads(json.dumps(proposing.explicit(GemmSpec(), own)))
    rates = dataclasses.replace(device.cost, l2=device.cost.l2 / 4, port=device.cost.port / 4, tile=9e3)
    loads = dataclasses.replace(device.loads, gather=1e6)
    other = dataclasses.replace(
        device, name="another", cost=dataclasses.replace(rates, tile_turn=9e4), loads=loads
    )
    made = cutegemm.plan(refined(GemmSpec(), fields), of, other, database=False)
    assert fields and proposing._kernels(made) == proposing._kernels(own.plan)
