# SPDX-License-Identifier: Apache-2.0
"""Host time, with a fake clock; scripts in real processes."""

import subprocess

import pytest

from benchmarks import host_time, results


def test_calls_are_timed_without_the_wait():
    """A call's time is the clock's advance over it, the wait for the GPU left out."""
    now = [0.0]
    waits = []

    def spend(seconds):
        now[0] += seconds

    calls = {"ours": lambda: spend(5e-6), "cublas": lambda: spend(10e-6)}
    times = host_time.time_calls(
        calls, rounds=3, wait=lambda: (waits.append(1), spend(1.0)), clock=lambda: now[0]
    )
    assert times["ours"].us == pytest.approx(5) and times["cublas"].us == pytest.approx(10)
    assert times["ours"].rounds == 3 and len(waits) == 7


def test_process_prints_its_seconds_and_has_its_cache(tmp_path):
    """The last word printed is the time, and the script sees the cache folder given."""
    script = "import os; print('noise'); print(len(os.environ['CUTEGEMM_CACHE_DIR']))"
    assert host_time.process_time(script, str(tmp_path)) == len(str(tmp_path))


def test_failing_process_is_an_error(tmp_path):
    """A script that fails gives no time."""
    with pytest.raises(subprocess.CalledProcessError):
        host_time.process_time("raise SystemExit(3)", str(tmp_path))


def test_each_round_has_a_fresh_cache(monkeypatch):
    """The cached kernel is timed right after the first, from the same cache; every round begins with none."""
    seen = []

    def process_time(script, cache):
        seen.append((script, cache))
        return 2.0

    monkeypatch.setattr(host_time, "process_time", process_time)
    times = host_time.process_times()
    assert {what: m.us for what, m in times.items()} == {
        "import": 2e6,
        "first_kernel": 2e6,
        "from_cache": 2e6,
    }
    rounds = [seen[i : i + 3] for i in range(0, len(seen), 3)]
    assert len({cache for _, cache in seen}) == len(rounds) == host_time.PROCESS_ROUNDS
    assert all(len({cache for _, cache in one}) == 1 and one[1] == one[2] != one[0] for one in rounds)


def test_scripts_are_python():
    """Both scripts compile, bound their cores before torch loads, and import ours when they should."""
    for script in (host_time._IMPORT, host_time._KERNEL):
        compile(script, "script", "exec")
        assert script.index("sched_setaffinity") < script.index("import torch")
    assert host_time._IMPORT.index("start =") < host_time._IMPORT.index("import cutegemm")
    assert host_time._KERNEL.index("start =") > host_time._KERNEL.index("import cutegemm")


def test_rows_have_the_host_schema():
    """Host rows carry the thing timed instead of a problem."""
    ours, cublas = results.host_rows(
        "call",
        {"cutegemm": host_time.summarize([4.0, 5.0, 9.0]), "cublas": host_time.summarize([10.0])},
        "cublas",
    )
    assert tuple(ours) == results.HOST_FIELDS
    assert (ours["suite"], ours["what"], ours["us"], ours["ratio"]) == ("host", "call", 5.0, 2.0)
    assert (ours["us_min"], ours["us_max"], cublas["ratio"]) == (4.0, 9.0, 1.0)
