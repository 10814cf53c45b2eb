# SPDX-License-Identifier: Apache-2.0
"""Fitting what loads of odd operands cost: measured ways, how the model ranks them, constants that say so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import fit, fit_loads
from cutegemm.arch.records import H100, H200, TIMES_FILE

SWEEPS = Path(__file__).parents[2] / "benchmarks" / "results" / "sweeps"
SHAPES = [(17, 8191, 4099), (777, 111, 333), (999, 65, 2047), (63, 1023, 4095)]


def sweep(path, device, gpu="NVIDIA H200"):
    """A sweep of what a GPU whose loads cost what a device's model says would have measured."""
    rows = []
    for m, n, k in SHAPES:
        shape = {"suite": "odd", "dtype": "bf16", "majors": "kk", "batch": 1, "m": m, "n": n, "k": k}
        kernel = fit_loads.Loaded(
            gpu, "odd", fit_loads.problem(m, n, k, majors="kk"), {fit_loads.COPIED: 50.0}
        )
        ways = [(a, b) for a in ("relayout", "shift", "gather") for b in ("relayout", "shift", "gather")]
        of = dataclasses.replace(kernel, us={fit_loads.COPIED: 50.0} | dict.fromkeys(ways, 50.0))
        for (a, b), us in fit_loads.predicted(of, device).items():
            rows.append(
                shape | {"spec": {"a_load": a, "b_load": b}, "us": us, "baseline_us": 10.0, "ratio": 10 / us}
            )
        # neither of these is a way
        rows.append(shape | {"spec": {}, "us": 1.0, "baseline_us": 10.0, "ratio": 10.0})
        rows.append(
            shape | {"spec": {"a_load": "shift", "stages": 2}, "us": 1.0, "baseline_us": 10.0, "ratio": 10.0}
        )
    path.write_text(json.dumps({"environment": {"gpu": gpu}, "rows": rows}))
    return path


def slower(**factors):
    """The H200 with constants of loads changed."""
    changed = {name: getattr(H200.time, name) * factor for name, factor in factors.items()}
    return dataclasses.replace(H200, time=dataclasses.replace(H200.time, **changed))


def test_what_threads_cost_is_found_again(tmp_path, capsys):
    """Shifts at half speed and dear gathers are found, and written to the record, or onto another GPU's."""
    truth = slower(shift=0.5, gather=1.5)
    path, record = sweep(tmp_path / "s.json", truth), tmp_path / "times.json"
    assert len(fit_loads.read([path])) == 4 and all(len(x.us) == 9 for x in fit_loads.read([path]))
    record.write_text(TIMES_FILE.read_text())
    words = ["--loads", "--write", "--sweeps", str(path), "--record", str(record)]
    assert fit.main(words) == 0 and fit.main([*words, "--onto", H100.name]) == 0
    data = json.loads(record.read_text())
    for device in (H200, H100):
        time = data[device.name]["time"]
        assert time["shift"] == pytest.approx(truth.time.shift, rel=0.15)
        assert time["gather"] == pytest.approx(truth.time.gather, rel=0.15)
        assert time["mma"] == device.time.mma and data[device.name]["source"].count("loads:") == 1
    assert "not written" not in capsys.readouterr().out


def test_what_ranks_no_better_is_not_written(tmp_path, capsys):
    """Constants that are right already stay."""
    path, record = sweep(tmp_path / "s.json", H200), tmp_path / "times.json"
    assert fit.main(["--loads", "--write", "--sweeps", str(path), "--record", str(record)]) == 1
    assert "not written" in capsys.readouterr().out and not record.exists()


def test_the_committed_sweeps_of_loads_are_ranked():
    """Of kernels that were timed with shifts the model's way is the best; all times are off by less than a third."""
    found = fit_loads.read([SWEEPS / "choices.json", SWEEPS / "odd_loads.json"])
    assert len(found) == 13 and sum(fit_loads.COPIED in x.us for x in found) == 6
    scores = [
        fit_loads.score(x, H200, fit.BLUR) for x in found if "shift" in {y for way in x.us for y in way}
    ]
    assert len(scores) == 3 and all(regret == 0.0 and error < 0.2 for regret, _, error in scores)
    assert all(fit_loads.score(x, H200, fit.BLUR)[2] < 0.33 for x in found)
