# SPDX-License-Identifier: Apache-2.0
"""What runs under compute-sanitizer: small, right, and what its name says."""

from __future__ import annotations

import pytest

from benchmarks import sanitized
from cutegemm import problem
from cutegemm.config.shared import staggers
from cutegemm.planning.planner import plan


def test_every_dense_case_is_what_its_name_says():
    """Ways to meet, walks and loads, each of one plan."""
    found = {
        name: plan(spec, problem(*shape, d_dtype=None if spec.d_dtype == "auto" else spec.d_dtype))
        for name, (spec, shape) in sanitized.CASES.items()
        if not name.startswith(("scaled", "groups", "tf32", "int8", "stored", "few"))
    }
    for name, made in found.items():
        config, kind = made.config, name.split("_")[0]
        if kind in ("launch", "cluster", "workspace", "atomic"):
            assert config.split_reduction == kind and config.splits > 1
        elif name == "cp_async":
            assert config.copies_async
        elif kind == "shift":
            b = config.operands[1]
            assert b.load == "shift" and b.boxed(*config.tile[1:]) is (name == "shift")
        elif kind == "lines":
            assert config.outputs[0].store == "staged" and sanitized.CASES[name][1][1] % 2
        else:
            assert config.tile_scheduler == name.removesuffix("_alone")
        assert (config.cluster_splits > 1) is (
            name in ("launch_clusters", "cluster", "cluster_pairs", "atomic_clusters")
        )
    assert found["launch_adders"].storing.config.adders == 2


def test_every_case_of_few_rows_is_what_its_name_says():
    """On the CUDA cores, rows or columns, several slices of K among them, aligned or not."""
    found = []
    for name, (spec, (m, n, k)) in sanitized.CASES.items():
        if name.startswith("few"):
            config = plan(spec, problem(m, n, k, majors="kk")).config
            assert config.family == "gemv" and config.aligned is name.endswith("aligned")
            assert config.rows == (n if name == "few_columns" else m)
            assert bool(config.early) is ("early" in name) and bool(config.evict_first) is ("first" in name)
            found.append(config)
    assert max(x.slices for x in found) > 1 and max(x.own for x in found) > 1


def test_every_scaled_case_is_what_its_name_says():
    """Sums of blocks are scaled in the mainloop, with scales that the producer loads; a cluster shares K."""
    for name, (spec, (m, n, k)) in sanitized.CASES.items():
        if name.startswith("scaled"):
            config = plan(
                spec, problem(m, n, k, dtype="fp8", majors="kk", d_dtype="bf16", epilogue=spec.epilogue)
            ).config
            kind = name.split("_")[1]
            assert bool(config.epilogue.scales) is (kind not in ("tensor", "row", "turns"))
            assert staggers(config) is (kind == "turns")
            assert config.cluster_splits == (2 if kind == "cluster" else 1)


def test_every_case_of_integers_is_what_its_name_says():
    """Loaded by TMA, of copies that transpose or do not, or by threads."""
    units = {"int8_transposed": ("transposed", "transposed"), "int8_copied": ("col", "row")}
    for name, (spec, (m, n, k)) in sanitized.CASES.items():
        if name.startswith("int8"):
            majors = "mn" if name in ("int8_transposed", "int8_gathered") else "kk"
            made = plan(spec, problem(m, n, k, dtype="int8", majors=majors, epilogue=named(spec)))
            assert (made.steps[0].config.units if len(made.steps) > 1 else None) == units.get(name)
            assert made.config.gathers is (name == "int8_gathered")


def test_every_case_of_a_d_in_8_bits_is_what_its_name_says():
    """By TMA or as unaligned rows; those of blocks have scales as a second output."""
    for name, (spec, (m, n, k)) in sanitized.CASES.items():
        if name.startswith("stored"):
            dtype, d_dtype = "int8" if name == "stored_int8" else "fp8", spec.d_dtype
            given = {} if d_dtype == "auto" else {"d_dtype": d_dtype}
            config = plan(
                spec, problem(m, n, k, dtype=dtype, majors="kk", epilogue=named(spec), **given)
            ).config
            assert config.outputs[0].dtype.bits == 8
            assert config.outputs[0].store == ("staged" if name.endswith("lines") else "tma")
            assert bool(config.epilogue.blocks) is (name in ("stored_blocks", "stored_squares"))


def named(spec):
    """The graph of a spec that has one."""
    return None if spec.epilogue == "auto" else spec.epilogue


@pytest.mark.sliced
@pytest.mark.parametrize(
    "name",
    [
        "atomic", "few_rows_early_first_aligned", "launch_adders", "lines_few",
        "scaled_row", "scaled_block", "groups_indexed", "scaled_exponents",
        "int8_points", "int8_transposed", "int8_copied", "quantize_blocks", "quantize_turned_row",
        "rows_copied", "rows_summed", "quantize_twin_row", "quantize_twin_squares", "stored_fp8", "stored_fp8_lines",
        "stored_int8", "stored_blocks", "stored_squares",
    ],
)  # fmt: skip
def test_a_case_runs_and_is_compared(name):
    """On the emulator it gives the product twice; a wrong one would be seen."""
    assert sanitized.error_of(name, "cpu", "emulator") <= sanitized.TOLERANCE


def test_the_command_says_what_is_wrong(monkeypatch, capsys):
    """It exits 1, and names cases that there are."""
    monkeypatch.setattr(sanitized, "error_of", lambda name: 1.0 if name == "shift" else 1e-3)
    assert sanitized.main(["--only", "atomic"]) == 0
    assert sanitized.main(["--only", "atomic,shift"]) == 1
    assert "WRONG shift" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        sanitized.main(["--only", "atomics"])
    assert "atomics: must be among launch, " in capsys.readouterr().err
