# SPDX-License-Identifier: Apache-2.0
"""Fitting kernels of a few rows or columns of D: drawn problems, tables of sweeps, constants that they tell."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import fit, fit_few_rows
from cutegemm import problem
from cutegemm.arch.records import H200, TIMES_FILE
from cutegemm.config.gemv import MOST_ROWS, TILES
from cutegemm.planning import gemv_tiles

SHAPES = [(1045, 731), (2810, 5730), (37_386, 1713), (1408, 16_896), (22_016, 3328), (5316, 1192)]


def test_jobs_have_every_tile_and_a_config_of_the_tensor_cores(tmp_path):
    """Drawn problems have few rows or columns, and each config's kernels are listed."""
    out = tmp_path / "jobs.json"
    words = ["draw", "--seeds", "3,4", "--counts", "odd_skinny=3,decode=2", "--out", str(out)]
    assert fit_few_rows.main(words) == 0
    made = json.loads(out.read_text())
    assert len(made["jobs"]) == 5
    for job in made["jobs"]:
        rows = min(job["m"], job["n"])
        tiles = ("x".join(map(str, t.tile)) for t in TILES if t.rows == rows)
        assert rows <= MOST_ROWS and [x["config"] for x in job["configs"]] == [fit_few_rows.TENSOR, *tiles]
        assert all(x["kernels"] and max(x["kernels"]) < len(made["kernels"]) for x in job["configs"])
    lines = tmp_path / "sweep.jsonl"
    tiles = [x for x in TILES if x.rows == min(made["jobs"][2]["m"], made["jobs"][2]["n"])]
    timed = {str(i): [9.0 - i / 9, 9.5] for i in range(len(tiles) + 1)}
    row = {"i": 2, "case": {}, "first": timed, "last": {"1": [5.0, 4.0, 6.0], "cublas": [8.0]}}
    lines.write_text(json.dumps(row) + "\n" + json.dumps({"i": 3, "begun": True}) + "\n")
    table = tmp_path / "few_rows_test.json"
    words = ["table", "--jobs", str(out), "--lines", str(lines), "--commit", "abc", "--out", str(table)]
    assert fit_few_rows.main(words) == 0
    (found,) = fit_few_rows.read([table])
    assert found.us[tiles[0]] == 5.0 and found.us[tiles[1]] == pytest.approx(9 - 2 / 9, abs=1e-3)
    assert found.gpu == H200.name and found.problem.k == made["jobs"][2]["k"]
    assert fit_few_rows.read([tmp_path / "jobs.json"]) == []


def test_what_a_column_takes_is_found_again(tmp_path):
    """A latency that differs is found and written."""
    truth = dataclasses.replace(
        H200, few_rows=dataclasses.replace(H200.few_rows, latency=1.6 * H200.few_rows.latency)
    )
    found = []
    for n, k in SHAPES:
        of = problem(1, n, k, majors="kk")
        us = {
            "x".join(map(str, x.tile)): gemv_tiles.estimate(of, x, truth, k % 8 == 0) / 1e3
            for x in TILES
            if x.rows == 1
        }
        case = {"suite": "odd", "m": 1, "n": n, "k": k, "batch": 1, "dtype": "bf16", "majors": "kk"}
        found.append(case | {"us": us | {"cublas": 9.0, fit_few_rows.TENSOR: 9.0}})
    table, record = tmp_path / "few_rows_test.json", tmp_path / "times.json"
    table.write_text(json.dumps({"gpu": H200.name, "commit": None, "few_rows": found}))
    record.write_text(TIMES_FILE.read_text())
    words = ["--gpu", H200.name, "--few-rows", "--write", "--sweeps", str(table), "--record", str(record)]
    assert fit.main(words) == 0
    assert json.loads(record.read_text())[H200.name]["few_rows"]["latency"] == pytest.approx(
        truth.few_rows.latency, rel=0.15
    )
