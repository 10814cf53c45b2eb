# SPDX-License-Identifier: Apache-2.0
"""Which calls look for a shortcut, and with what key, where shapes have one."""

import pytest
import torch

import cutegemm
from cutegemm.errors import InputError
from cutegemm.ops import shortcuts
from tests.support.launched import launches, r

launched = pytest.fixture(launches)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: cutegemm.linear(x, w, 1.0),
        lambda x, w: cutegemm.linear(x, w, [1.0] * 32),
        lambda x, w: cutegemm.linear(x, w.float().numpy()),
        lambda x, w: cutegemm.linear(x.float().numpy(), w),
        lambda x, w: cutegemm.matmul(x.float().numpy(), w.mT),
    ],
    ids=["a number", "a list", "an array as weight", "an array as x", "an array as a"],
)
def test_an_argument_that_is_no_tensor_is_named_behind_a_shortcut(call, launched):
    """An array's shape is as good a key as a tensor's."""
    x, w = r(48, 64), r(32, 64)
    for _ in range(2):
        cutegemm.linear(x, w)
        cutegemm.linear(x, w, r(32))
        cutegemm.matmul(x, w.mT)
    with pytest.raises(InputError, match=r"must be a torch\.Tensor"):
        call(x, w)


def test_a_recorded_call_does_not_try_the_shortcuts_of_others(launched, monkeypatch):
    """Those of calls without gradients, which an evaluation has left: it looks up one key, which says what it needs."""
    x, w = r(48, 64), torch.nn.Parameter(r(32, 64))
    with torch.no_grad():
        cutegemm.linear(x, w)
        cutegemm.linear(x, w)
    cutegemm.linear(x, w)
    found, own = [], shortcuts.found_in

    def found_in(known, key, *rest):
        found.append(len(key))
        return own(known, key, *rest)

    monkeypatch.setattr(shortcuts, "found_in", found_in)
    cutegemm.linear(x, w)
    with torch.no_grad():
        cutegemm.linear(x, w)
    assert found == [3, 2]
