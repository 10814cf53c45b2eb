# SPDX-License-Identifier: Apache-2.0
"""Fitting the CUDA cores: measured tiles, how the model ranks them, constants that say so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import fit, fit_cores
from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H100, H200, TIMES_FILE
from cutegemm.planning.planner import plan
from cutegemm.planning.simt_tiles import estimate, fields_of, weighed
from cutegemm.request.requirements import requested

SWEEPS = Path(__file__).parents[2] / "benchmarks" / "results" / "sweeps"
SHAPES = [(512, 512, 512), (333, 5025, 1023), (64, 4096, 4096), (2048, 2048, 2048)]


def changed(**factors):
    """The H200 with constants of the CUDA cores changed."""
    cores = {name: getattr(H200.cores, name) * factor for name, factor in factors.items()}
    return dataclasses.replace(H200, cores=dataclasses.replace(H200.cores, **cores))


def weigh(of, device, **fields):
    """(nanoseconds, tile) of what a spec leaves for a problem."""
    return weighed(requested(GemmSpec(**fields), of, device)[0])


def probed(path, device):
    """What the probe would have measured on a GPU that takes what a device's model says."""
    problems = []
    for shape in SHAPES:
        of = problem(*shape, dtype="fp32", majors="kk")
        rows = {fit_cores.name_of(x): {"us": estimate(of, x, device) / 1e3} for _, x in weigh(of, H200)}
        rows |= {"plan": {"us": 1.0}, "cublas": {"us": 1.0}}
        problems.append({"shape": "x".join(map(str, shape)), "majors": "kk", "rows": rows})
    path.write_text(json.dumps({"gpu": H200.name, "problems": problems}))
    return path


def test_a_name_tells_its_tile():
    """Every tile's name is read back; cuBLAS and the planner's own choice are none."""
    of = problem(333, 5025, 1023, dtype="fp32", majors="kk")
    for _, tile in weigh(of, H200):
        assert fit_cores.tile_of(fit_cores.name_of(tile)) == tile
    assert fit_cores.tile_of("plan") is None and fit_cores.tile_of("cublas") is None


def test_what_the_cores_take_is_found_again(tmp_path, capsys):
    """Slots that take longer are found and written beside the other constants, which stay."""
    truth = changed(slot=1.3)
    path, record = probed(tmp_path / "probe.json", truth), tmp_path / "times.json"
    record.write_text(TIMES_FILE.read_text())
    words = ["--cores", "--write", "--sweeps", str(path), "--record", str(record)]
    assert fit.main(words) == 0 and fit.main([*words, "--onto", H100.name]) == 0
    data, before = json.loads(record.read_text()), json.loads(TIMES_FILE.read_text())
    for device in (H200, H100):
        found = data[device.name]
        assert found["cores"]["slot"] == pytest.approx(truth.cores.slot, rel=0.1)
        assert found["cores_source"] == "fitted by benchmarks.fit to probe.json of NVIDIA H200"
        assert found.get("cost") == before.get(device.name, {}).get("cost")


def test_sweeps_name_tiles_by_their_specs(tmp_path):
    """Rows of a sweep whose spec gives a tile of the CUDA cores are read, and no others."""
    of = problem(512, 512, 512, dtype="fp32", majors="kk")
    row = {"suite": "fp32", "dtype": "fp32", "majors": "kk", "batch": 1, "m": 512, "n": 512, "k": 512}
    tiles = [x for _, x in weigh(of, H200)][:3]
    rows = [
        row
        | {
            "spec": json.loads(json.dumps(dict(fields_of(x)))),
            "us": 10.0 + i,
            "baseline_us": 20.0,
            "ratio": 2.0 - i / 9,
        }
        for i, x in enumerate(tiles)
    ]
    rows += [row | {"spec": x, "us": 1.0, "ratio": 1.0} for x in ({}, {"swap": False, "tile": [64, 64, 32]})]
    rows.append(row | {"dtype": "bf16", "spec": {"tile": [128, 256, 64]}, "us": 1.0, "ratio": 1.0})
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"environment": {"gpu": H200.name}, "rows": rows}))
    (found,) = fit_cores.read([path])
    assert found.us == {
        dataclasses.replace(x, residents=plan(GemmSpec(**dict(fields_of(x))), of).config.residents): 20
        / (2 - i / 9)
        for i, x in enumerate(tiles)
    }


def test_the_record_ranks_what_was_measured():
    """On the committed measurements the tile that the H200's record puts first is within 8 % of the best everywhere,
    and within 3 % on average."""
    found = [x for x in fit_cores.read(sorted(SWEEPS.glob("*.json"))) if x.gpu == H200.name]
    regrets = [fit_cores.score(x, H200, fit.BLUR)[0] for x in found]
    assert len(found) >= 9 and max(regrets) < 0.08 and sum(regrets) / len(regrets) < 0.03
