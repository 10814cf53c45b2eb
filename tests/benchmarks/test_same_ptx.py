# SPDX-License-Identifier: Apache-2.0
"""The guard that compares the PTX of two trees' kernels."""

import json

import pytest

from benchmarks import same_ptx
from cutegemm import GemmSpec, Tile, plan, problem
from cutegemm.errors import PlanError

PTX = """//
// Compiler Build ID: CL-1
.version 8.8
.visible .entry kernel_old_path(
	.param .u64 kernel_old_path_param_0
)
{
	.loc 1 2 3
	ret;
}
"""
SPECS = (GemmSpec(), GemmSpec(tile=Tile(64, 64, 64)), GemmSpec(schedule="simt"))


@pytest.fixture
def saved(monkeypatch, tmp_path):
    """A file of three kernels whose PTX is what `monkeypatch` says."""
    configs = [plan(x, problem(256, 256, 256)).steps[0].config for x in SPECS]
    entries = [{"id": str(i), "case": {}, "step": 0, "config": x.to_data()} for i, x in enumerate(configs)]
    monkeypatch.setattr(same_ptx, "listed", lambda seed: entries)
    monkeypatch.setattr(same_ptx, "compiled", lambda config: (same_ptx.normalised(PTX), "code"))
    path = tmp_path / "reference.json"
    assert same_ptx.main(["--save", str(path)]) == 0
    return path


def test_names_of_kernels_comments_and_source_lines_are_left_out():
    """What a moved module or another compiler's build changes is no difference."""
    other = PTX.replace("old_path", "new_path").replace("CL-1", "CL-2").replace(".loc 1 2 3", ".loc 7 8 9")
    assert same_ptx.normalised(other) == same_ptx.normalised(PTX)
    assert same_ptx.normalised(PTX.replace("ret", "exit")) != same_ptx.normalised(PTX)


def test_a_kernel_that_differs_is_listed(saved, monkeypatch, capsys):
    """The command fails and says how many lines differ; of equal kernels it says nothing."""
    assert same_ptx.main(["--against", str(saved)]) == 0
    assert capsys.readouterr().out.endswith("3 the same\n")
    other = same_ptx.normalised(PTX.replace("ret", "exit")), "other code"
    same = same_ptx.compiled(None)
    monkeypatch.setattr(same_ptx, "compiled", lambda config: other if config.family == "simt" else same)
    assert same_ptx.main(["--against", str(saved)]) == 1
    told = capsys.readouterr().out
    assert "2 simt: 2 lines differ" in told and "2 the same, 1 different" in told
    assert same_ptx.main(["--against", str(saved), "--diff", "2"]) == 0
    assert "-\tret;\n+\texit;" in capsys.readouterr().out


def test_other_ptx_of_the_same_machine_code_is_no_difference(saved, monkeypatch, capsys):
    """Registers that are numbered otherwise leave no trace in what runs."""
    monkeypatch.setattr(same_ptx, "digest", lambda text: "another")
    assert same_ptx.main(["--against", str(saved)]) == 0
    assert "3 the same machine code" in capsys.readouterr().out


def test_a_sample_has_every_family_first(saved):
    """However few kernels are compared, no family is left out while there is room."""
    entries = list(json.loads(saved.read_text()).values())
    assert {x["config"]["family"] for x in same_ptx.chosen(entries, 2, 5)} == {"warp_specialized", "simt"}
    assert len(same_ptx.chosen(entries, 9, 5)) == 3


def test_a_config_that_cannot_be_read_is_planned_again(saved, monkeypatch):
    """A field that is gone says nothing about the kernel: the case's plan gives the config."""
    entry = json.loads(saved.read_text())["0"]
    config, again = same_ptx.config_of(entry)
    assert not again
    entry["config"]["gone"] = 1
    found, again = same_ptx.config_of(entry)
    assert again and found.family == config.family


def test_a_kernel_that_the_new_tree_refuses_counts_as_a_difference(saved, monkeypatch, capsys):
    """The guard passes only where every kernel was compiled."""

    def refused(config):
        raise PlanError("no such kernel")

    monkeypatch.setattr(same_ptx, "compiled", refused)
    assert same_ptx.main(["--against", str(saved)]) == 1
    assert "3 refused" in capsys.readouterr().out
