# SPDX-License-Identifier: Apache-2.0
"""`cutegemm emulate`, `bench`, `tune` and `ladder`: thin over the emulator, the tuner and the handwritten kernels."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.cli import emulate as command
from cutegemm.cli import inputs
from cutegemm.cli.facts import comparison, emulated_arrays, emulation
from cutegemm.cli.inputs import Case, case
from cutegemm.compiling import kernel_cache
from cutegemm.gemm import Gemm
from cutegemm.tuning.race import Regime
from tests.support.command import document, refused, run
from tests.support.fake_bench import FakeBench

SMALL = ("256", "128", "128", "--spec", "tile=(128, 64, 64)")
COPY = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry copy(.param .u64 x, .param .u64 y, .param .u32 n)
.reqntid 32
{
  .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .f32 %f<2>;
  ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
  ld.global.f32 %f1, [%rd4]; st.global.f32 [%rd5], %f1;
  RACE
  ret;
}
"""

RACE = "st.global.f32 [%rd2], %f1;"


@epi.define
def fused(acc, *, bias: epi.Row, scale: epi.Scalar):
    """A vector, a number, an fp8 output, and reductions that are finished and that are not."""
    h = acc * scale + bias
    return epi.Output(
        d=h,
        low=epi.Store(h, dtype="fp8_e4m3"),
        top=epi.Max(h, axis=1),
        logs=epi.LogSumExp(h, axis=1, partial=True),
    )


def test_a_problem_is_emulated():
    """D is right, nothing is found, roles and counters are shown."""
    text = run("emulate", *SMALL)
    assert "relative error 1." in text and "findings    0" in text
    assert "tma load bytes" in text and "4-11" in text
    found = document("emulate", *SMALL, "--no-races", "--policy", "lazy")
    assert found["error"] < 3e-3 and not found["untested"] and found["counters"]["tma_loads"] == 16
    assert {x["name"] for x in found["roles"]} == {"TMA", "other", "wgmma"}


@pytest.mark.sliced
@pytest.mark.parametrize("dtype", inputs.DTYPES)
def test_every_type_is_emulated(dtype):
    """Operands of each type that `--dtype` names give D within the rounding of its own type."""
    found = document("emulate", 64, 64, 128, "--dtype", dtype, "--majors", "kk", "--no-races")
    assert found["error"] < 5e-3 and not found["findings"]


def test_a_kernel_of_a_file_is_emulated(tmp_path):
    """Arrays and numbers are passed in order; a race ends with status 1."""
    path = tmp_path / "copy.ptx"
    path.write_text(COPY.replace("RACE", ""))
    words = ("emulate", path, "--block", 32, "--arg", "f32:32", "--arg", "f32:32", "--arg", 32)
    assert "findings    0" in run(*words)
    counters = document(*words)["counters"]
    # 128 bytes that begin where a line of memory begins
    assert (counters["global_load_requests"], counters["global_load_sectors"]) == (1, 4)
    path.write_text(COPY.replace("RACE", RACE))
    assert "race between lanes" in run(*words, status=1)


def test_one_of_several_kernels_of_a_file_is_chosen(tmp_path):
    """`--entry` names it; without a name the error lists what the file holds."""
    path = tmp_path / "two.ptx"
    other = COPY.replace("RACE", RACE).replace(".entry copy", ".entry racing")
    path.write_text(COPY.replace("RACE", "") + other[other.index(".visible") :])
    words = ("emulate", path, "--block", 32, "--arg", "f32:32", "--arg", "f32:32", "--arg", 32)
    assert "entry=None: the module holds copy, racing" in refused(*words)
    assert "findings    0" in run(*words, "--entry", "copy")
    assert "race between lanes" in run(*words, "--entry", "racing", status=1)


def test_an_artefact_is_emulated(tmp_path, monkeypatch):
    """The first problem that is small enough runs from the file alone; large ones are refused."""
    spec, path = GemmSpec(tile=Tile(128, 64, 64)), tmp_path / "gemm.cutegemm"
    Gemm(spec).save(path, [problem(4096, 4096, 4096), problem(256, 128, 128)])
    monkeypatch.setattr(kernel_cache, "compile_config", lambda config: pytest.fail("compiled"))
    found = document("emulate", path)
    assert found["what"] == "gemm.cutegemm: 256 x 128 x 128 bf16" and found["error"] < 3e-3
    monkeypatch.setattr(emulation, "MOST_FLOPS", 1000)
    assert "none of its 2 problems has at most 1,000 FLOP" in refused("emulate", path)
    (tmp_path / "bad").write_bytes(b"PK nonsense")
    assert "bad" in refused("emulate", tmp_path / "bad")


def without(missing, *commands):
    """A process in which packages cannot be imported, after it has run commands."""
    # as in an environment without them, where `None` in sys.modules says something else
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from cutegemm.cli.app import app
for x in {list(commands)}:
    app(x, prog_name="cutegemm", standalone_mode=False)
"""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize(
    "missing, words, line",
    [
        (("torch",), ["bench", "64", "64", "64"], "needs it: pip install 'torch>=2.11'"),
        (("torch",), ["tune", "64", "64", "64"], "torch: is not installed"),
        (("cutlass",), ["ptx", "192", "64", "64"], "needs it: pip install 'nvidia-cutlass-dsl>=4.8.1"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_the_line_that_installs_it(missing, words, line, tmp_path, monkeypatch):
    """A command that needs torch, or the DSL, ends with a line for pip, not with a traceback."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    done = without(missing, words)
    assert line in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", [("torch",), ("torch", "cutlass")])
def test_neither_torch_nor_the_dsl_is_needed(tmp_path, missing):
    """An artefact and a PTX file are emulated without both, a problem without torch."""
    of = problem(256, 128, 128)
    path = Gemm(GemmSpec(tile=Tile(128, 64, 64)), of).save(tmp_path / "gemm.cutegemm", [of])
    (tmp_path / "copy.ptx").write_text(COPY.replace("RACE", ""), encoding="utf-8")
    words = [
        [str(path)],
        [str(tmp_path / "copy.ptx"), "--block", "32", *["--arg", "f32:32"] * 2, "--arg", "32"],
    ]
    words += [list(SMALL)] * (len(missing) == 1)
    done = without(missing, *(["emulate", *x] for x in words))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("findings    0") == len(words)


def test_every_output_of_an_epilogue_has_its_place(tmp_path):
    """Reductions, partial ones too, numbers on the device and stores in other types are given memory."""
    of = problem(128, 64, 64, epilogue=fused, device_scalars=("scale",))
    found = emulation.emulate_problem(
        Case(GemmSpec(tile=Tile(128, 64, 64), epilogue=fused), of, H200, "a test")
    )
    assert (found.findings, found.error) == ([], None)


def test_a_sum_over_nothing_has_no_error():
    """With K = 0 D is zero, and JSON has no NaN."""
    assert document("emulate", 64, 64, 0)["error"] == 0


@pytest.mark.parametrize("along", ["m", "n", "k"])
def test_groups_are_emulated(along):
    """--groups draws the groups' ends and compares each group's D with fp64."""
    words = ("--groups", 3, "--along", along, "--spec", "tile=(128, 64, 64), sms=4")
    found = document("emulate", 200, 128, 192, *words)
    assert not found["findings"] and 0 < found["error"] < 3e-3
    assert found["what"].startswith("200 x 128 x 192, 3 groups ")


def test_a_wrong_group_shows(monkeypatch):
    """A kernel that is given other ends than the check differs from fp64."""
    monkeypatch.setattr(emulation, "_by_groups", lambda a, b, ends, like, form: a[0] @ b[0])
    assert document("emulate", 200, 128, 64, "--groups", 2)["error"] > 0.1


def test_c_is_added():
    """A problem with C is compared with alpha A B + beta C."""
    of, spec = problem(256, 128, 128, c_dtype="bf16"), GemmSpec(tile=Tile(128, 64, 64))
    assert emulation.emulate_problem(Case(spec, of, H200, "a test"), races=False).error < 3e-3


@pytest.mark.parametrize(
    "text, dtype, shape",
    [("f16:4x8", "float16", (4, 8)), ("bf16[8]", "uint16", (8,)), ("s32:3", "int32", (3,))],
)
def test_arguments_are_drawn(text, dtype, shape):
    """TYPE:EXTENTS is an array of drawn elements."""
    found = emulated_arrays.argument(text)
    assert (found.dtype, found.shape) == (np.dtype(dtype), shape) and found.any()
    assert (emulated_arrays.argument("7"), emulated_arrays.argument("-0.5")) == (7, -0.5)


@pytest.mark.parametrize(
    "words, says",
    [
        (("4096", "4096", "4096"), "the emulator needs minutes beyond"),
        (("256", "256"), "must be three extents, or one PTX file"),
        (("none.ptx",), "cutegemm emulate: none.ptx: No such file"),
        ((*SMALL, "--policy", "soon"), "must be one of eager, lazy, random"),
        ((*SMALL, "--policy", "lasy"), "must be one of eager, lazy, random; nearest legal value: 'lazy'"),
        (("x.cubin",), "a PTX module starts with"),
        (("x.ptx", "--grid", "0"), "must be X, XxY or XxYxZ"),
        ((*SMALL, "--grid", "3"), "--grid: is for FILE.ptx; the plan of M N K has its own launch"),
        (("x.ptx", "--groups", "2"), "--groups: describes M N K; FILE is compiled"),
        ((*SMALL, "--groups", "2", "--batch", "2"), "--batch=2: groups lie in one matrix"),
        (("x.ptx", "--dtype", "fp16"), "--dtype: describes M N K; FILE is compiled"),
        (("x.ptx", "--arg", "q8:4"), "must be a number or TYPE:EXTENTS"),
    ],
)
def test_what_cannot_be_emulated_is_refused(words, says, tmp_path, monkeypatch):
    """Too large, incomplete, missing or unknown: status 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.ptx").write_text(COPY.replace("RACE", ""))
    (tmp_path / "x.cubin").write_bytes(b"\x7fELF\xd0\xff")
    assert says in refused("emulate", *words)


def test_what_a_kernel_prints_is_shown():
    """Lines of printf have a paragraph of their own."""
    printed = emulation.EmulatedRun("copy.ptx", 1, None, [], [], {}, [], "one\ntwo\n")
    assert command.as_text(printed).splitlines()[-3:] == ["printed", "one", "two"]


def test_warps_are_shown_in_runs():
    """Neighbours are a run."""
    assert command._warps([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


def test_contenders_are_timed_beside_each_other():
    """The faster is said to be, by more than the rounds differ; TFLOP/s follow from the time."""
    both = {
        "ours": case((512, 512, 512), "tile=(128, 64, 64)"),
        "other": case((512, 512, 512), "tile=(128, 64, 64), stages=4"),
    }
    bench = FakeBench(lambda plan: 2e-6 if plan.config.stages == 4 else 1e-6)
    found = comparison.compared(both, bench, Regime(preheat=0.0, sample=1e-4, pairs=5), against_torch=False)
    assert found.verdict == "ours is faster" and [x.name for x in found.rows] == ["ours", "other"]
    assert found.rows[0].us == pytest.approx(1.0) and found.rows[0].factor == pytest.approx(2.0)
    assert found.rows[0].tflops == pytest.approx(2 * 512**3 / 1e6)


def test_a_problem_that_torch_does_not_multiply():
    """torch.matmul has no GEMM of 8-bit operands, so there is one contender; an empty D is refused without a GPU."""
    words = {"dtype": "int8", "b_dtype": "uint8", "majors": "kk"}
    bench = FakeBench(lambda plan: 1e-6)
    cases = {comparison.OURS: case((512, 512, 512), **words)}
    found = comparison.compared(cases, bench, Regime(preheat=0.0, sample=1e-4, pairs=5))
    assert [x.name for x in found.rows] == [
        comparison.OURS
    ] and found.problem == "512 x 512 x 512; int8 x uint8"
    assert found.verdict == "torch.matmul does not compute this problem"
    assert "D is empty" in refused("bench", 0, 64, 64)


def test_bench_shows_the_contenders(monkeypatch):
    """A row each, and the verdict; without a GPU status 2."""
    assert "times are taken on a Hopper GPU" in refused("bench", 64, 64, 64)
    rows = [
        comparison.Timed("cutegemm", 2.0, 0.01, 100.0, 1.5),
        comparison.Timed("torch", 3.0, 0.02, 66.0, 1.0),
    ]
    found = comparison.Comparison("64 x 64 x 64; bf16", "a GPU", "versions", rows, "cutegemm is faster")
    monkeypatch.setattr(comparison, "compared", lambda asked: found)
    text = run("bench", 64, 64, 64)
    assert "1.500 x" in text and text.endswith("cutegemm is faster\n")
    assert document("bench", 64, 64, 64)["verdict"] == "cutegemm is faster"


def test_tune_says_what_it_came_to(monkeypatch):
    """An outcome a line; one that was interrupted ends with the status of an interrupted command."""
    assert "and there is none" in refused("tune", 64, 64, 64)
    outcome = comparison.OutcomeOf("tuned", 2.0, 4.0, {"stages": 4}, "64 x 64 x 64 bf16: tuned, 2.0 us")
    monkeypatch.setattr(comparison, "tuned", lambda asked, **options: comparison.Tuned([outcome], False))
    assert run("tune", 64, 64, 64) == "64 x 64 x 64 bf16: tuned, 2.0 us\n"
    monkeypatch.setattr(comparison, "tuned", lambda asked, **options: comparison.Tuned([outcome], True))
    assert document("tune", 64, 64, 64, status=130)["interrupted"]


def test_tuning_is_told_as_data(tmp_path, monkeypatch):
    """The outcome's entry, where there is one, becomes fields."""
    from cutegemm.tuning.outcomes import Outcome, Report
    from tests.support.tuned import entry

    of = case((1000, 512, 256))
    outcomes = (Outcome(of.problem, "tuned", entry(of.problem)), Outcome(of.problem, "refused", None, "why"))
    monkeypatch.setattr("cutegemm.tuning.tune", lambda spec, problems, **options: Report(outcomes))
    found = comparison.tuned(of, again=True)
    assert [x.us for x in found.outcomes] == [3.5, None] and not found.interrupted
    assert "refused: why" in found.outcomes[1].text


def test_the_ladder_is_the_handwritten_command(monkeypatch, capsys):
    """Every word goes to it, --help too, and its status comes back."""
    given = []
    monkeypatch.setattr("handwritten.ladder.command.main", lambda words: given.append(words) or 1)
    run("ladder", "--stages", "01", "--json", "out.json", status=1)
    run("ladder", "--help", status=1)
    assert given == [["--stages", "01", "--json", "out.json"], ["--help"]]
