# SPDX-License-Identifier: Apache-2.0
"""What an error of the epilogue language proposes instead of a name that it does not have."""

import pytest

from cutegemm import epilogue as epi
from cutegemm.errors import SpecError


@pytest.mark.parametrize("name", ["sin", "tan", "log2", "exp2", "median"])
def test_where_nothing_is_near_nothing_is_guessed(name):
    """A function that the language does not have is not taken for one that is spelt alike."""
    with pytest.raises(SpecError) as e:
        getattr(epi, name)
    assert e.value.nearest is None and str(e.value) == f"epilogue='{name}': unknown operation"


def test_an_activation_of_another_name_is_known():
    """swish is silu, not hardswish, also where an activation is named by text."""
    with pytest.raises(SpecError) as e:
        epi.bias_act("swish")
    assert e.value.nearest == "silu"
