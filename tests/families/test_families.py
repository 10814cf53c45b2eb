# SPDX-License-Identifier: Apache-2.0
"""The table of families: every path names something, and what it holds agrees with the configs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from cutegemm import GemmSpec, problem
from cutegemm.families import FAMILIES, load, of_schedule
from cutegemm.families.table import markdown
from cutegemm.planning.planner import plan
from cutegemm.spec import LOADS, SCHEDULERS, SCHEDULES, SPLIT_REDUCTIONS, STORES


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_path_names_something(family):
    """Config, driver and plan of a family exist, and its config carries its name."""
    config = load(family.config)
    assert dataclasses.is_dataclass(config) and callable(load(family.driver))
    assert family.plan is None or callable(load(family.plan))
    field = {x.name: x for x in dataclasses.fields(config)}["family"]
    assert field.default in (family.name, dataclasses.MISSING)


def test_every_schedule_has_a_family():
    """A spec's schedule names one family, "auto" the first, and a plan's config is of that family."""
    for schedule in SCHEDULES:
        named = [x for x in FAMILIES.values() if schedule in x.schedules]
        assert named == [of_schedule(schedule)]
        assert plan(GemmSpec(schedule=schedule), problem(256, 256, 256)).config.family == named[0].name
    assert of_schedule("auto") is next(iter(FAMILIES.values()))


@pytest.mark.parametrize("family", [x for x in FAMILIES.values() if x.limits], ids=lambda x: x.name)
def test_registers_hold_the_accumulators(family):
    """What consumers may hold fits the registers they get, and all warpgroups' registers fit an SM."""
    for gathers, rows in family.roles.registers.items():
        for consumers, (producer, consumer) in rows.items():
            assert family.roles.producers * producer + consumers * consumer <= 512
            most = max(
                family.roles.most(consumers, laden=gathers),
                family.roles.turns[gathers] if consumers == 2 else 0,
            )
            assert most <= consumer - 24


def test_a_family_without_tensor_cores_has_no_roles():
    """Asking for them is a mistake of ours, not of a spec."""
    with pytest.raises(TypeError, match="simt is not a tensor-core family"):
        FAMILIES["simt"].roles  # noqa: B018


def test_the_table_imports_no_kernel():
    """Looking a family up imports neither its driver nor its planner."""
    code = (
        "import sys, cutegemm.families; "
        "print([x for x in sys.modules if x.startswith('cutegemm.kernels') or x == 'cutlass'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_document_has_the_table():
    """The table of the documentation is made from the rows."""
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    assert markdown() in text


def test_a_spec_can_ask_for_what_rows_have():
    """A spec's names of loads, stores, tile schedulers and reductions are those of the rows of its schedules."""
    rows = [row for x in FAMILIES.values() if x.schedules for row in x.abilities.values()]
    assert {"relayout", *(x for row in rows for x in row.loads)} == {*LOADS, "direct"}
    assert {x for row in rows for x in row.stores} == set(STORES)
    assert {x for row in rows for x in row.schedulers} == set(SCHEDULERS)
    assert {x for row in rows for x in row.reductions} == {"none", *SPLIT_REDUCTIONS}
