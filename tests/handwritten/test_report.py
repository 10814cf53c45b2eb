# SPDX-License-Identifier: Apache-2.0
"""Tables show measured columns only where there are measurements; twins are specs one field apart."""

import pytest

import handwritten
from cutegemm import plan, problem
from cutegemm.errors import CompileError
from handwritten import __main__ as command
from handwritten import report, resources
from handwritten.twins import _between, knobs, twin


def row(contender, us, dtype="fp32", m=64):
    """A results row of an m-cubed problem that cuBLAS does in 10 us."""
    return {
        "dtype": dtype,
        "m": m,
        "n": m,
        "k": m,
        "beta": 0.0,
        "contender": contender,
        "us": us,
        "tflops": 2 * m**3 / us / 1e6,
        "ratio": 10 / us,
    }


def test_speed_up_is_over_the_stage_before():
    """The step column compares with the last measured stage of the same dtype."""
    rows = [row("01_naive", 40.0), row("03_smem_tile", 20.0), row("14_mma_sync", 5.0, "bf16")]
    steps = {line.stage.key: line.cells()[3] for line in report.lines(rows) if line.row}
    assert steps == {"01_naive": "", "03_smem_tile": "2.00", "14_mma_sync": ""}


def test_share_of_cublas():
    """A stage twice as slow as cuBLAS has half of its speed."""
    (line,) = [line for line in report.lines([row("01_naive", 20.0)]) if line.row]
    assert line.cells()[1:3] == ["0.0", "50.0%"]


def test_without_a_gpu_the_table_leaves_measured_columns_out(capsys, monkeypatch):
    """Without a GPU the command shows the resources, says what it left out, and succeeds."""
    monkeypatch.setattr(command, "has_gpu", lambda: False)
    monkeypatch.setenv("COLUMNS", "200")
    assert command.main(["--dtypes", "fp32"]) == 0
    shown = capsys.readouterr().out
    assert "01_naive" in shown and "09_wmma_global" not in shown
    assert "registers" in shown and "x before" not in shown
    assert "left out TFLOP/s" in shown
    assert "Instruction mix" in shown and "LDG.E.128 18" in shown and "FFMA 576" in shown


def test_without_a_disassembler_the_command_says_what_else_it_left_out(capsys, monkeypatch):
    """The instruction mix needs nvdisasm; without it the rest is shown and the reason given."""

    def missing(cubin):
        raise CompileError("nvdisasm: not found")

    monkeypatch.setattr(command, "has_gpu", lambda: False)
    monkeypatch.setattr(resources, "disassemble", missing)
    monkeypatch.setenv("COLUMNS", "200")
    assert command.main(["--dtypes", "fp32"]) == 0
    assert "and the instruction mix (nvdisasm: not found)" in capsys.readouterr().out


def test_readme_has_every_stage():
    """The worklog has a section for each stage, in order."""
    text = (handwritten.stage(1).path.parent / "README.md").read_text()
    numbers = dict.fromkeys(stage.number for stage in handwritten.stages())
    places = [text.find(f"\n### {number:02} ") for number in numbers]
    assert -1 not in places and places == sorted(places)


def test_speed_up_is_over_the_fastest_of_the_rung():
    """Of a rung's variants the fastest is what the next stage is compared with."""
    times = {"17_wgmma_shapes_n128": 30.0, "17_wgmma_shapes_n256": 90.0, "18_producer_consumer": 20.0}
    rows = [row(name, us, "bf16") for name, us in times.items()]
    steps = {line.stage.key: line.cells()[3] for line in report.lines(rows) if line.row}
    assert steps == {"17_wgmma_shapes_n128": "", "17_wgmma_shapes_n256": "", "18_producer_consumer": "1.50"}


def test_plot_writes_a_picture(tmp_path):
    """Bars for the largest size and curves over sizes end up in a PNG."""
    rows = [
        row(name, us * size, m=size)
        for name, us in (("cublas", 1.0), ("01_naive", 4.0))
        for size in (64, 128)
    ]
    report.plot(rows, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("text, expected", [("4096", (4096,) * 3), ("128x64x32", (128, 64, 32))])
def test_extents(text, expected):
    """One number is a cube, three are M, N and K."""
    assert command.extents(text) == expected


@pytest.mark.parametrize("stage", handwritten.stages(), ids=lambda stage: stage.key)
def test_twins_are_specs_that_the_builder_takes(stage):
    """A stage's twin has its tile and fits; only Hopper stages have one."""
    spec = twin(stage)
    assert (spec is not None) <= (stage.number >= 16)
    if spec is not None:
        config = plan(spec, problem(4096, 4096, 4096)).config
        assert config.tile == tuple(stage.constants[name] for name in ("BM", "BN", "BK"))


def test_neighbouring_specs_differ_in_one_field():
    """From the first twin to the last each spec changes one field, all are legal, and every twin is among them."""
    specs = knobs()
    plain = [spec.__dict__ for spec in specs.values()]
    changes = [[name for name in a if a[name] != b[name]] for a, b in zip(plain, plain[1:])]
    assert [len(names) for names in changes] == [1] * (len(specs) - 1)
    for spec in specs.values():
        plan(spec, problem(4096, 4096, 4096))
    twins = {f"{stage.key} (DSL)" for stage in handwritten.stages() if twin(stage)}
    assert len(twins) == 6 and twins < set(specs)


def test_specs_between_the_stages_asked_for():
    """Only the stretch that the asked stages span is built."""
    stages = [handwritten.stage(18), handwritten.stage(19), handwritten.stage(3)]
    assert list(_between(stages, "bf16")) == [
        "18_producer_consumer (DSL)",
        "DSL, stages 3",
        "19_staged_epilogue (DSL)",
    ]
    assert _between(stages, "fp32") == {}
