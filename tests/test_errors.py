# SPDX-License-Identifier: Apache-2.0
"""The one root error, its data, and the message built from them."""

import copy
import inspect
import pickle
import traceback
from pathlib import Path

import numpy
import pytest
import torch

from cutegemm import errors
from cutegemm.errors import ABSENT, GemmError, PlanError, SpecError, check, field_error, shown

KINDS = [x for _, x in inspect.getmembers(errors, inspect.isclass) if issubclass(x, BaseException)]


def test_every_error_is_a_gemm_error_and_a_value_error():
    """One `except GemmError` catches whatever cutegemm refuses."""
    assert len(KINDS) >= 7
    for kind in KINDS:
        assert issubclass(kind, GemmError) and issubclass(kind, ValueError)


def test_message_names_field_value_rule_and_nearest():
    """The standard message has its four parts in order, the last only when there is one."""
    error = field_error(SpecError, "stages", 99, "must be from 1 to 16", 16)
    assert str(error) == "stages=99: must be from 1 to 16; nearest legal value: 16"
    assert str(field_error(PlanError, "swizzle", "x", "no")) == "swizzle='x': no"
    assert str(PlanError("overlaps c", field="out")) == "out: overlaps c"
    assert str(PlanError("there is no GPU")) == "there is no GPU"
    assert type(error) is SpecError


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_are_attributes_that_survive_pickling(kind):
    """Field, value, rule, nearest value and circumstances can be asked for, in a copy from elsewhere too."""
    error = kind("a rule", field="tile.n", value=9, nearest=16).about(spec="GemmSpec()")
    for x in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (x.field, x.value, x.rule, x.nearest) == ("tile.n", 9, "a rule", 16)
        assert (str(x), x.context) == (str(error), error.context) and type(x) is kind


def test_parts_that_are_not_known_are_said_to_be():
    """An error about nothing in particular has its rule, and None or ABSENT for the rest."""
    error = GemmError("a rule")
    assert (error.field, error.value, error.rule, error.nearest) == (None, ABSENT, "a rule", None)
    assert field_error(GemmError, "c", None, "must be given").value is None


@pytest.mark.parametrize(
    ("field", "concerned"),
    [
        ("tile", True),
        ("tile.n", True),
        ("tile[1]", True),
        ("tile()", True),
        ("tiles", False),
        ("a.tile", False),
        (None, False),
    ],
)
def test_an_error_concerns_its_field_and_the_whole_of_it(field, concerned):
    """ "tile.n" is a part of "tile"; a longer name is another."""
    assert GemmError("a rule", field=field).concerns("tile") is concerned


def test_circumstances_are_added_around_the_message_not_to_it():
    """A traceback shows what the call was made with; the text stays, and the innermost call knew best."""
    error = SpecError("no", field="stages", value=9)
    assert error.about(spec="inner", a=(128, 64)) is error
    error.about(spec="outer", problem=3)
    assert str(error) == "stages=9: no"
    assert error.context == {"spec": "'inner'", "a": "(128, 64)", "problem": "3"}
    if hasattr(error, "add_note"):
        lines = "".join(traceback.format_exception_only(error)).splitlines()
        assert lines[-4:] == [
            "cutegemm.errors.SpecError: stages=9: no",
            "spec: 'inner'",
            "a: (128, 64)",
            "problem: 3",
        ]


class Unprintable:
    """A value whose repr raises."""

    def __repr__(self):
        raise RuntimeError("no repr")


def test_values_of_any_kind_take_one_short_line():
    """Tensors and arrays show type, shape and dtype, long values their ends, broken ones that they are."""
    assert shown(torch.ones(3, 4)) == "<Tensor (3, 4) torch.float32>"
    assert shown(torch.ones((), device="meta")) == "<Tensor () torch.float32>"
    assert shown(numpy.ones(5)) == "<ndarray (5,) float64>"
    assert shown(torch.bfloat16) == "torch.bfloat16" and shown(numpy.int64(3)) == repr(numpy.int64(3))
    long = shown("a" * 5_000 + "b" * 5_000)
    assert len(long) <= errors.LONGEST_VALUE and long.startswith("'aaa") and long.endswith("bbb'")
    assert shown(Unprintable()) == "<Unprintable whose repr raises RuntimeError>"


def test_check_raises_its_kind_only_when_the_condition_fails():
    """`check` is silent for a true condition, and its error has the same parts."""
    check(True, PlanError, "never")
    with pytest.raises(PlanError, match="^because$"):
        check(False, PlanError, "because")
    with pytest.raises(PlanError, match="^bits=9: is a multiple of 8; nearest legal value: 8$") as e:
        check(False, PlanError, "is a multiple of 8", field="bits", value=9, nearest=8)
    assert e.value.field == "bits"


@pytest.mark.parametrize(
    "module, line", [("torch", "pip install 'torch>=2.11'"), ("cutlass.cute", "nvidia-cutlass-dsl>=")]
)
def test_a_missing_package_s_error_has_the_line_that_installs_it(module, line):
    """A package of ours is named with pip's line, as a GemmError and an ImportError; others are Python's."""
    with pytest.raises(errors.MissingPackageError, match=line) as found, errors.needing():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert isinstance(found.value, ImportError) and found.value.field == module.split(".")[0]
    with pytest.raises(ModuleNotFoundError, match="other"), errors.needing():
        raise ModuleNotFoundError("No module named 'other'", name="other")


def test_the_lines_are_those_of_the_project():
    """What an error tells pip to install is what the project requires."""
    required = Path(errors.__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8")
    for line in errors._PACKAGES.values():
        assert all(f'"{x.strip(chr(39))}"' in required for x in line.split()), line
