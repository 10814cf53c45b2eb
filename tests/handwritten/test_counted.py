# SPDX-License-Identifier: Apache-2.0
"""`python -m handwritten --emulate`: stages run on the CPU, checked and counted, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

import handwritten
from cutegemm import emulator
from cutegemm.errors import EmulatorError
from handwritten.ladder import emulated
from handwritten.ladder.command import main

ROOT = Path(__file__).parents[2]


def test_coalescing_is_what_the_first_step_buys():
    """Stage 02 loads as much as stage 01 with a seventh of the sectors, and as many instructions."""
    naive, coalesced = (emulated.emulate(handwritten.stage(x), "fp32", (64, 64, 64)) for x in (1, 2))
    assert naive.counters["global_load_sectors"] == 270_336
    assert coalesced.counters["global_load_sectors"] == 40_960
    assert naive.instructions == coalesced.instructions
    assert naive.error <= 1 and not naive.findings and not coalesced.findings


@pytest.mark.sliced
@pytest.mark.parametrize(("stage", "beta"), [(6, 0.0), (13, 0.5), (18, 0.0), (22, 0.5)])
def test_stages_of_every_kind_are_right(stage, beta):
    """Vectors, wmma, a pipeline and a reduction by a second kernel, with C and without."""
    chosen = handwritten.stage(stage)
    outcome = emulated.emulate(chosen, chosen.dtypes[0], (72, 64, 96), beta)
    assert outcome.error <= 1 and not outcome.findings and outcome.instructions > 0


def test_a_wrong_result_is_an_error(monkeypatch):
    """Results are compared with fp64: if the bound has no room for rounding D, they fail."""
    monkeypatch.setattr(emulated, "ROUNDOFF", dict.fromkeys(emulated.ROUNDOFF, 0.0))
    with pytest.raises(EmulatorError, match="stage 10_wmma_smem is wrong by"):
        emulated.emulate(handwritten.stage(10), "bf16", (64, 64, 64))


def test_a_missing_barrier_is_named_by_its_lines(monkeypatch, capsys):
    """Stage 03 without its barriers is wrong, and the command names the source lines that race."""
    ptx = handwritten.stage(3).compiled("fp32").ptx
    broken = emulator.Module.parse(
        ptx.replace("bar.sync", "// bar.sync").replace("barrier.sync", "// barrier.sync")
    )
    monkeypatch.setattr(emulated, "module", lambda *_: broken)
    assert main(["--emulate", "--stages", "3"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "03_smem_tile is wrong by" in shown
    assert "03_smem_tile: write-read race: load by" in shown and "(03_smem_tile.cu:" in shown


def test_the_command_shows_a_table(capsys, monkeypatch):
    """A line of 80 columns for each stage; a stage that does not take the shape is named, and the status says so."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--emulate", "--stages", "1,16"]) == 0
    shown = capsys.readouterr().out
    assert "M x N x K = 64 x 64 x 64" in shown and "270,336" in shown and "16_wgmma_serial" in shown
    assert "conflicts" in shown and "races" in shown and max(map(len, shown.splitlines())) <= 80
    assert main(["--emulate", "--stages", "6", "--sizes", "65"]) == 1
    assert "06_vectorised: " in capsys.readouterr().out


def test_it_needs_no_torch():
    """Emulating a stage imports neither torch nor the DSL."""
    code = (
        "import sys, handwritten\nfrom handwritten.ladder.emulated import emulate\n"
        "emulate(handwritten.stage(16), 'bf16', (64, 64, 64))\n"
        "bad = [x for x in ('torch', 'cutlass') if x in sys.modules]\nsys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
