# SPDX-License-Identifier: Apache-2.0
"""Predicted compared with measured times, and a fit to the sweeps of a GPU without a record."""

import dataclasses

import numpy as np
import pytest

from benchmarks import fit_cost, predicted, table
from cutegemm.arch.records import H200

SCALES = [fit_cost.SWEEPS / "scales_h200.json"]


@pytest.fixture(scope="module")
def found():
    """The families of a small sweep."""
    return predicted.compared(SCALES)


def test_every_problem_of_a_sweep_is_compared(found):
    """A choice per problem, which is measured over predicted time and near one."""
    family = found[-1]
    problems = [x for x in fit_cost.fresh(*SCALES, H200) if x.family == family.name]
    assert (
        sum(len(x.chosen) for x in found)
        == len(fit_cost.fresh(*SCALES, H200))
        > len(problems)
        == len(family.chosen)
    )
    assert np.allclose(family.chosen, family.measured_us / family.predicted_us)
    assert set(family.measured_us) <= {us for x in problems for us in x.us}
    assert 0.9 < np.median(family.chosen) < 1.1
    assert len(problems) < len(family.near) < sum(len(x.us) for x in problems)


def test_a_record_that_predicts_twice_the_time_has_half_the_ratio(found):
    """The rates are those of the given record."""
    factors = {
        name: 2 * H200.kernels.get(name, 1.0)
        for name in fit_cost.Data(fit_cost.fresh(*SCALES, H200), H200).kernels
    }
    slow = predicted.compared(SCALES, dataclasses.replace(H200, kernels=factors))
    assert np.allclose(slow[0].near, found[0].near / 2)


def test_the_table_has_a_line_a_family(found):
    """As many cells as the head, and the ends of the range in order."""
    head, (*_, line) = predicted.lines(found)
    assert len(head) == len(line) and line[0] == found[-1].name
    low, high = map(float, line[-1].split(" to "))
    assert low < float(line[-2]) < high
    text = table.render(table.PREDICTED, {})
    assert f"| {line[0]} | " in text
    assert "[scales_h200.json](benchmarks/results/sweeps/scales_h200.json)" in text


def test_the_plot_is_the_same_each_time(found, tmp_path):
    """So that the committed file changes only with the sweeps or the record."""
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    predicted.draw(found, one)
    predicted.draw(found, two)
    assert one.read_bytes() == two.read_bytes() and b"predicted" in one.read_bytes()


def test_a_gpu_without_a_record_is_fitted_to_its_own_sweeps(tmp_path, monkeypatch, capsys):
    """Its rates are written under its name; without sweeps it is refused."""
    wrote = {}
    monkeypatch.setattr(fit_cost, "write", lambda *x: wrote.update({x[0]: x[1:]}))
    sweep = str(fit_cost.SWEEPS / "fresh_16_h200.json")
    assert fit_cost.main(["--gpu", "NVIDIA GH200 480GB", "--sweeps", sweep, "--write"]) == 0
    model, _, source = wrote["NVIDIA GH200 480GB"]
    assert model != fit_cost.START and source == "fitted by benchmarks.fit_cost to fresh_16_h200.json"
    assert "deep_k" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        fit_cost.main(["--gpu", "NVIDIA GH200 480GB"])
    assert "--sweeps must be given" in capsys.readouterr().err
