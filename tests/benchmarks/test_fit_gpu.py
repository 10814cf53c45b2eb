# SPDX-License-Identifier: Apache-2.0
"""One command fits a GPU: it draws once, measures until nothing is left, and writes a record that is read again."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import contenders, fit_gpu, sweep_jobs
from benchmarks.results import CASE_FIELDS, Case
from cutegemm.arch import records
from cutegemm.arch.records import H100, H200
from cutegemm.config import config_from_data
from cutegemm.planning.planner import plan
from cutegemm.planning.why import predicted_us
from cutegemm.running.backends import launcher, properties

NEW = "NVIDIA GH200 480GB"
FEW = [
    "--seeds",
    "2",
    "--counts",
    "decode=2,small=2,chain=2",
    "--configs",
    "4",
    "--kernels",
    "12",
    "--workers",
    "1",
]
# how many times slower the new GPU is than an H200
SLOWER = 1.5


@pytest.fixture
def new(monkeypatch, tmp_path):
    """A GPU without a record, and a folder of records that lacks it."""
    gpu = records.find(NEW, sms=132, l2_bytes=50 << 20, dram_gbs=3500.0)
    gpu = dataclasses.replace(gpu, clusters=((1, 132), (2, 66), (4, 32), (8, 16)))
    monkeypatch.setattr(fit_gpu, "queried", lambda: gpu)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUTEGEMM_DATABASE", "off")
    folder = tmp_path / "records"
    folder.mkdir()
    for path in (records.TIMES_FILE, records.KERNELS_FILE):
        (folder / path.name).write_text(path.read_text())
    return gpu


def measured(place, job):
    """A line of a sweep: a GPU that takes longer than the model predicts for an H200."""
    case = Case(**{name: job[name] for name in CASE_FIELDS})
    us = {"cublas": 10.0}
    for i, config in enumerate(job["configs"]):
        spec = sweep_jobs.refined(fit_gpu.sweep_draws.base(case), config["fields"])
        us[str(i)] = SLOWER * predicted_us(plan(spec, contenders.problem(case), H200))
    return {"i": place, "first": {x: [t] for x, t in us.items()}, "last": {x: [t] for x, t in us.items()}}


def test_a_dry_run_draws_and_compiles(new, tmp_path, monkeypatch, capsys):
    """Every kernel of the jobs, for a GPU that is not here; the next call draws nothing, and has the same options."""
    asked = []
    monkeypatch.setattr(sweep_jobs, "compile_parallel", lambda found, workers: asked.append(found))
    command = ["--out", str(tmp_path / "fit"), "--dry-run", "--gpu", NEW, *FEW]
    assert fit_gpu.main(command) == 0
    jobs = json.loads((tmp_path / "fit/jobs.json").read_text())
    assert jobs["gpu"] == NEW and {x["suite"] for x in jobs["jobs"]} == {"decode", "small", "chain"}
    assert asked[0] == [config_from_data(x) for x in jobs["kernels"]]
    monkeypatch.setattr(fit_gpu.sweep_draws, "drawn", None)
    assert fit_gpu.main(command) == 0 and {x.name for x in (tmp_path / "fit").iterdir()} == {"jobs.json"}
    with pytest.raises(SystemExit):
        fit_gpu.main([*command, "--seeds", "2,3"])
    assert "--seeds: " in (told := capsys.readouterr().err) and "drawn with [2]" in told


def test_the_same_command_goes_on_and_writes_the_record(new, tmp_path, monkeypatch, capsys):
    """Nothing is fitted while problems are left; then the GPU has its own properties and slower rates."""
    calls = []

    def some(words):
        """A measuring process that ends after four problems."""
        calls.append(words)
        args = dict(zip(words[::2], words[1::2], strict=False))
        path = fit_gpu.Path(args["--out"])
        jobs = json.loads(fit_gpu.Path(args["--jobs"]).read_text())["jobs"]
        todo = list(sweep_jobs.left(jobs, path))[:4]
        lines = [measured(*x) for x in todo]
        if not path.exists():
            lines.insert(0, {"environment": {"gpu": NEW}})
        with path.open("a") as file:
            file.writelines(json.dumps(x) + "\n" for x in lines)
        return 0

    monkeypatch.setattr(sweep_jobs, "main", some)
    command = ["--out", str(tmp_path / "fit"), "--records", str(tmp_path / "records"), "--seconds", "9", *FEW]
    assert fit_gpu.main(command) == 1 and "2 of 6 problems are left" in capsys.readouterr().out
    times, kernels = (tmp_path / "records" / x.name for x in (records.TIMES_FILE, records.KERNELS_FILE))
    assert records.added(times, kernels) == ()
    assert fit_gpu.main(command) == 0 and NEW in capsys.readouterr().out
    assert ["--compile" in x and x[x.index("--seconds") + 1] for x in calls] == ["9.0", "9.0"]
    (made,) = records.added(times, kernels)
    known = ("name", "sms", "clusters", "dram_gbs", "l2_bytes", "limits", "cores", "loads")
    assert [getattr(made, x) for x in known] == [getattr(new, x) for x in known]
    for told in ("thresholds", "rates of fp8", "CUDA cores", "factors of kernels"):
        assert told in made.note
    assert made.thresholds == H200.thresholds and made.cost.lift == H200.cost.lift
    lost = {x for x in H200.kernels.keys() - made.kernels.keys() if not x.endswith(" launch")}
    assert all(x.startswith("deep ") and x.replace("deep", "plain") in made.kernels for x in lost)
    # rates of the H200 predict its times too low, those of the record do not
    of = contenders.problem(Case(suite="small", dtype="bf16", majors="kk", m=512, n=512, k=512))
    ratio = predicted_us(plan(fit_gpu.sweep_draws.GemmSpec(), of, made)) / predicted_us(
        plan(fit_gpu.sweep_draws.GemmSpec(), of, new)
    )
    assert 1.2 < ratio < 1.8
    # the other records are as they were
    before, after = (json.loads(x.read_text()) for x in (records.TIMES_FILE, times))
    assert before == {name: x for name, x in after.items() if name != NEW}


def test_a_gpu_with_a_record_keeps_it(new, tmp_path, monkeypatch, capsys):
    """Unless the caller says so; jobs of another GPU and a part of a GPU are refused."""
    monkeypatch.setattr(fit_gpu, "drawn", lambda args, device, path: path.write_text('{"jobs": []}'))
    monkeypatch.setattr(sweep_jobs, "main", lambda words: 0)
    monkeypatch.setattr(fit_gpu.sweep_table, "table", lambda *_: {"cases": []})
    monkeypatch.setattr(fit_gpu, "queried", lambda: H100)
    fitted = []
    monkeypatch.setattr(fit_gpu, "recorded", lambda *x: fitted.append(x) or "fitted")
    command = ["--out", str(tmp_path / "fit"), "--records", str(tmp_path / "records")]
    assert fit_gpu.main(command) == 0 and not fitted and "--replace" in capsys.readouterr().out
    assert fit_gpu.main([*command, "--replace"]) == 0 and len(fitted) == 1
    # other records build on that of the H200, whose rates of fp8 these sweeps would not fit
    monkeypatch.setattr(fit_gpu, "queried", lambda: H200)
    with pytest.raises(SystemExit):
        fit_gpu.main([*command, "--replace"])
    assert "does not replace the record of NVIDIA H200" in capsys.readouterr().err and len(fitted) == 1
    monkeypatch.undo()
    (tmp_path / "fit/jobs.json").write_text(json.dumps({"gpu": NEW}))
    for gpu, sms, told in ((H200.name, 132, f"jobs of {NEW}"), (H200.name, 16, "is a part of a GPU")):
        with pytest.raises(SystemExit):
            fit_gpu.main([*command, "--dry-run", "--gpu", gpu, "--sms", str(sms)])
        assert told in capsys.readouterr().err


def test_properties_of_another_gpu_do_not_become_a_record(monkeypatch):
    """A GPU that cannot be queried runs with the default's clusters, but has no record of them."""
    failing = "failed"

    def asked():
        raise OSError(failing)

    def current():
        return 0, properties.device_for(NEW, 132, 50 << 20, asked)

    monkeypatch.setattr(properties, "_kept", lambda key: None)
    monkeypatch.setattr(launcher, "current_device", current)
    with pytest.raises(ValueError, match=f"cannot query the properties of {NEW}: {failing}"):
        fit_gpu._current()


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch, capsys):
    """Before anything is drawn. A GPU is hidden from the process that looks for one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit):
        fit_gpu.main(["--out", str(tmp_path), *FEW])
    assert "no Hopper GPU here; --dry-run" in capsys.readouterr().err
