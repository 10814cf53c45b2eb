# SPDX-License-Identifier: Apache-2.0
"""`cutegemm explain`: the plan that build takes, as text within 80 columns and as JSON."""

import json

import pytest

import cutegemm
from cutegemm.arch.records import H100, H200
from cutegemm.cli import gpus, inputs
from cutegemm.cli.gpus import DriverGpu, DriverInfo
from cutegemm.database import choose
from tests.support.command import document, refused, run


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """The GPU of the machine that runs the tests decides nothing."""
    monkeypatch.setattr(gpus, "driver_info", lambda: DriverInfo(None, (), "a test"))


@pytest.mark.parametrize(
    "words",
    [
        ("4096", "4096", "4096"),
        ("4096", "4096", "4096", "--why"),
        ("64", "4096", "4096", "--epilogue", "swiglu", "--gpu", "h100"),
        ("333", "777", "555", "--spec", "schedule='multistage'"),
        ("300", "300", "300", "--dtype", "fp32"),
        ("128", "128", "16384", "--batch", "3", "--majors", "mk"),
        ("0", "3", "3"),
        ("3", "3", "0"),
        ("256", "256", "255", "--spec", "a_load='gather'"),
        ("256", "256", "256", "--dtype", "fp8_e4m3", "--b-dtype", "fp8_e5m2"),
        ("4096", "1024", "2048", "--groups", "8", "--why"),
        ("256", "4096", "512", "--groups", "3", "--along", "n"),
        (
            "7",
            "8",
            "1000",
            "--dtype",
            "fp8",
            "--majors",
            "kk",
            "--spec",
            "split_k=2",
            "--epilogue",
            "geglu",
            "--why",
        ),
        ("256", "512", "4096", "--groups", "1", "--along", "k", "--gpu", "h100"),
    ],
    ids=" ".join,
)
def test_every_kind_of_problem_reads_at_80_columns(words):
    """Text, whose lines `run` measures, and JSON that is as its schema says."""
    text = run("explain", *words)
    assert text.startswith("problem     M x N x K = " + " x ".join(words[:3]))
    assert "chosen by" in text
    found = document("explain", *(x for x in words if x != "--why"))
    assert found["problem"].startswith(" x ".join(words[:3]))


def test_the_plan_is_the_one_that_build_takes():
    """Measured where the database knows the problem, with its time; predicted where it does not."""
    of = cutegemm.problem(4096, 4096, 4096)
    choice = choose(cutegemm.GemmSpec(), of, H200)
    found = document("explain", 4096, 4096, 4096)
    assert (found["chosen"]["by"], found["chosen"]["basis"]) == (choice.plan.chosen_by, "measured")
    assert found["chosen"]["us"] == choice.entry.us
    assert found["plan"] == json.loads(json.dumps(choice.plan.to_dict()))
    text = run("explain", 4096, 4096, 4096)
    assert "us measured" in " ".join(text.split()) and "us predicted" in " ".join(text.split())
    other = document("explain", 777, 555, 333)
    assert other["chosen"]["basis"] == "predicted"
    assert other["chosen"]["us"] == other["chosen"]["predicted_us"]


def test_the_gpu_is_said(monkeypatch):
    """--gpu, the GPU here, or the default: each is named as what it is."""
    assert document("explain", 64, 64, 64, "--gpu", "h100")["gpu"]["name"] == H100.name
    assert "(no Hopper GPU here: the default)" in run("explain", 64, 64, 64)
    monkeypatch.setattr(
        gpus, "driver_info", lambda: DriverInfo((13, 0), (DriverGpu(H100.name, (9, 0), 132, 50 << 20),))
    )
    found = document("explain", 64, 64, 64)["gpu"]
    assert (found["name"], found["source"]) == (H100.name, "this machine's")


def test_candidates_say_why_they_lost():
    """The one taken and the best others are listed; --why lists all."""
    short, whole = (run("explain", 2048, 2048, 2048, *words) for words in ((), ("--why",)))
    assert " taken" in short and "--why lists the other" in short
    count = len(document("explain", 2048, 2048, 2048)["candidates"])
    assert whole.count(" us  ") >= count > short.count(" us  ")


def test_a_spec_is_honoured():
    """What --spec fixes stands in the kernel; an epilogue of the library or of a file too."""
    found = document("explain", 512, 512, 512, "--spec", "GemmSpec(tile=Tile(128, 64, 64), stages=3)")
    (step,) = found["plan"]["steps"]
    assert (step["config"]["tile"], step["config"]["stages"]) == ([128, 64, 64], 3)
    text = run("explain", 512, 512, 512, "--epilogue", "bias_act(relu)")
    assert "epilogue    d = max(acc + bias, 0.0)\n" in text


def test_operands_of_two_types():
    """A and B of two types are given by --dtype and --b-dtype, or by the fields of the spec."""
    fields = "a_dtype='int8', b_dtype='uint8'"
    for words in (
        ("--dtype", "int8", "--b-dtype", "uint8"),
        ("--spec", fields),
        ("--dtype", "int8", "--spec", "b_dtype='uint8'"),
    ):
        assert "; A int8, B uint8, D int32\n" in run("explain", 64, 64, 64, *words)


def test_groups():
    """The explanation of groups names their form and the GEMMs that were planned; what depends on sizes is left out."""
    text = " ".join(run("explain", 4096, 1024, 2048, "--groups", 8).split())
    assert "M x N x K = 4096 x 1024 x 2048, 8 groups of rows; A, B bf16, D bf16" in text
    assert "us predicted for 8 GEMMs of 1024 x 1024 x 2048" in text
    assert "sizes are read on the device; planned as 8 GEMMs of 1024 x 1024 x 2048" in text
    assert "roofline" not in text and "candidates: 96, predicted times of these GEMMs" in text
    found = document("explain", 4096, 1024, 2048, "--groups", 8)
    assert found["groups"] == {"count": 8, "form": "rows", "planned_as": [1024, 1024, 2048]}
    assert found["waves"] is found["roofline"] is None and found["launch"]["threads"] == 384
    assert document("explain", 64, 64, 64)["groups"] is None
    said = refused("explain", 0, 64, 64, "--groups", 2)
    assert "groups without elements run no kernel; nearest legal value: (1, 64, 64)" in said


def test_the_page_of_groups(tmp_path):
    """The page leaves out what depends on the groups' sizes."""
    run("explain", 512, 128, 64, "--groups", 4, "--html", tmp_path / "groups.html")
    text = (tmp_path / "groups.html").read_text("utf-8")
    assert "4 groups of rows" in text and "Shared memory" in text and "Roofline" not in text


def test_an_epilogue_of_a_file(tmp_path):
    """FILE.py:NAME runs the file and takes a graph, or a function that makes one."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from cutegemm import epilogue as epi\n"
        "@epi.define\ndef twice(acc):\n    return acc * 2.0\n"
        "def made():\n    return twice\nnothing = 3\n"
    )
    assert str(inputs.graph_of(f"{path}:twice")) == str(inputs.graph_of(f"{path}:made")) == "d = acc * 2.0"
    assert "must name an epilogue graph" in refused("explain", 64, 64, 64, "--epilogue", f"{path}:nothing")
    assert "must name an existing Python file" in refused("explain", 64, 64, 64, "--epilogue", "none.py:x")


@pytest.mark.parametrize(
    "text, says",
    [
        ("import nowhere", "does not run: ModuleNotFoundError"),
        ("1 +", "does not run: SyntaxError"),
        ("raise SystemExit(0)", "does not run: SystemExit"),
        ("def x(y): ...", "does not run: TypeError"),
        ("from cutegemm import GemmSpec\nGemmSpec(tiles=1)", "tiles=1: GemmSpec has no such field"),
        ("x = 3", "must name an epilogue graph"),
    ],
)
def test_a_file_that_does_not_run_is_refused(tmp_path, text, says):
    """Whatever a file of an epilogue raises ends the command with a line and status 2."""
    path = tmp_path / "mine.py"
    path.write_text(text, "utf-8")
    assert says in refused("explain", 64, 64, 64, "--epilogue", f"{path}:x")


@pytest.mark.parametrize("name", inputs.epilogues())
def test_every_epilogue_of_the_library_is_known(name):
    """Each name makes a graph without arguments."""
    assert str(inputs.graph_of(name))


@pytest.mark.parametrize(
    "words, says",
    [
        (
            ("--spec", "tiles=(128, 64)"),
            "tiles=(128, 64): GemmSpec has no such field; its fields are ",
        ),
        (("--spec", "tiles=(128, 64)"), "nearest legal value: 'tile'"),
        (("--spec", "**{'tile': 1}"), "'tile': 1}: GemmSpec has no such field"),
        (("--spec", "GemmSpec(tile="), "must be GemmSpec(...) with literal values"),
        (("--spec", "__import__('os')"), "must be GemmSpec(...) with literal values"),
        (("--spec", "tile=open('x')"), "must be a literal value"),
        (("--spec", "tile=Tile(128, 'x')"), "tile.n='x': must be an integer"),
        (("--spec", "tile={[]: 1}"), "must be a literal value"),
        (("--spec", "tile=Tile(open('x'), 64)"), "must be Tile(m, n, k)"),
        (("--spec", "tile=" + "-" * 9000 + "1"), "must be GemmSpec(...) with literal values"),
        (("--spec", "tile=Tile(1, 2, 3, 4)"), "must be Tile(m, n, k)"),
        (("--spec", "tile=Tile(100, 64)"), "tile.m=100"),
        (("--spec", "stages=3, swap=True, stages=4"), "stages='4': is given twice"),
        (("--spec", "tile=Tile(m=64, n=64, m=128)"), "m='128': is given twice"),
        (("--epilogue", "bias_act(activation=relu, activation=gelu)"), "activation='gelu': is given twice"),
        (("--epilogue", "bias_gelu"), "nearest legal value: 'bias"),
        (
            ("--epilogue", "bias_act("),
            "must be a name, or a call with arguments; nearest legal value: 'bias_act'",
        ),
        (("--epilogue", "bias(3)"), "takes 0 positional arguments"),
        (("--gpu", "a100"), "--gpu='a100': must be one of h200, h100; nearest legal value: 'h100'"),
        (("--dtype", "int16"), "dtype='int16'"),
        (("--majors", "xy"), "majors='xy'"),
        (("--groups", 2, "--batch", 3), "--batch=3: groups lie in one matrix, so there is no batch"),
        (("--along", "k"), "--along='k': needs --groups"),
        (("--groups", 2, "--along", "x"), "--along='x': must be one of m, n, k"),
        (("--groups", 0), "'--groups': 0 is not in the range x>=1"),
        (
            ("--groups", 1 << 31),
            "--groups=2147483648: must be from 1 to 2147483647; nearest legal value: 2147483647",
        ),
        (("--groups", 2, "--dtype", "fp32"), "tensor cores, which take fp32 operands as tf32"),
        (
            ("--groups", 2, "--spec", "schedule='simt'"),
            "schedule='simt': groups are multiplied by tensor cores",
        ),
        (("--groups", 2, "--along", "k", "--epilogue", "swiglu"), "groups along K have no gated pairs"),
        (
            ("--dtype", "int8", "--b-dtype", "fp8_e5m2"),
            "b_dtype='fp8_e5m2': A is int8, B must be int8 or uint8",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(words, says):
    """The option, the value, the rule and the nearest legal value, on standard error, with status 2."""
    assert says in refused("explain", 512, 512, 512, *words)


def test_a_spec_prints_what_is_read():
    """The repr of a spec is read back as that spec."""
    spec = cutegemm.GemmSpec(
        tile=cutegemm.Tile(128, 256, 64), cluster=(2, 1), a_dtype="bf16", raster=("m", 8)
    )
    assert inputs.spec_of(repr(spec)) == spec
    assert inputs.spec_of("") == cutegemm.GemmSpec()
    assert inputs.spec_of("epilogue=bias_act('gelu')").epilogue == inputs.graph_of(
        "bias_act(activation=gelu)"
    )
