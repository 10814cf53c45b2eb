# SPDX-License-Identifier: Apache-2.0
"""The one root error and the one form of message."""

import inspect

import pytest

from cutegemm import errors


def test_every_error_is_a_gemm_error_and_a_value_error():
    """One `except GemmError` catches whatever cutegemm refuses."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert len(kinds) >= 7
    for kind in kinds:
        assert issubclass(kind, errors.GemmError) and issubclass(kind, ValueError)


def test_message_names_field_value_rule_and_nearest():
    """The standard message has its four parts in order, the last only when there is one."""
    error = errors.field_error(errors.SpecError, "stages", 99, "must be from 1 to 16", 16)
    assert str(error) == "stages=99: must be from 1 to 16; nearest legal value: 16"
    assert str(errors.field_error(errors.PlanError, "swizzle", "x", "no")) == "swizzle='x': no"
    assert type(error) is errors.SpecError


def test_check_raises_its_kind_only_when_the_condition_fails():
    """`check` is silent for a true condition."""
    errors.check(True, errors.PlanError, "never")
    with pytest.raises(errors.PlanError, match="^because$"):
        errors.check(False, errors.PlanError, "because")
