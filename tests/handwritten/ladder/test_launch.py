# SPDX-License-Identifier: Apache-2.0
"""Tensors become problems, and bad input is refused before anything is launched, with words pinned."""

import ctypes
import re
from typing import Any

import pytest
import torch

import handwritten
from cutegemm.errors import HardwareError, InputError
from handwritten.ladder import launch
from handwritten.ladder.launch import describe
from handwritten.ladder.plans import Launch, TensorMap, Workspace

STAGE = handwritten.stage("coalesced")


def tensors(
    m: int = 4, n: int = 6, k: int = 8, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B and C on the CPU."""
    return torch.zeros(m, k, dtype=dtype), torch.zeros(k, n, dtype=dtype), torch.zeros(m, n, dtype=dtype)


def test_cpu_tensors_are_refused_with_what_works_instead() -> None:
    """A stage runs on a GPU alone, and says what it can do without one."""
    a, b, c = tensors()
    message = (
        "device=cpu: stage 02_coalesced runs on a Hopper GPU only; "
        "without one use .resources(), .ptx, .sass or .plan()"
    )
    with pytest.raises(HardwareError, match=f"^{re.escape(message)}$"):
        STAGE.run(a, b, c)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"a": torch.zeros(8)}, "a.ndim=1: must be 2"),
        ({"b": torch.zeros(7, 6)}, "b.shape=(7, 6): must have a's 8 columns as rows"),
        ({"b": torch.zeros(8, 6).bfloat16()}, "b.dtype=torch.bfloat16: must be a's, torch.float32"),
        ({"c": torch.zeros(6, 4)}, "c.shape=(6, 4): must be (4, 6)"),
        ({"c": None, "beta": 0.5}, "beta=0.5: must be 0 or None when c is not given"),
        ({"out": torch.zeros(4, 5)}, "out.shape=(4, 5): must be (4, 6)"),
        ({"out": torch.zeros(4, 6).half()}, "out.dtype=torch.float16: must be a's, torch.float32"),
        (
            {"a": torch.zeros(4, 16)[:, ::2]},
            "a.stride()=(16, 2): one stride must be 1; pass a.contiguous()",
        ),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    """Each kind of bad input has its own words: field, value, rule."""
    a, b, c = tensors()
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        STAGE.run(**{"a": a, "b": b, "c": c} | change)


def test_wrong_dtype() -> None:
    """A dtype that the stage lacks is refused with those it has."""
    a, b, _ = tensors(dtype=torch.float64)
    with pytest.raises(InputError, match=r"a.dtype=torch.float64: stage 02_coalesced takes torch.float32"):
        STAGE.run(a, b)


def test_majors_and_pitches_come_from_the_strides() -> None:
    """A transposed view is column-major, and a slice keeps its parent's pitch."""
    a = torch.zeros(8, 20)[:, :4].t()  # (4, 8), column-major, pitch 20
    b = torch.zeros(8, 10)[:, :6]  # (8, 6), row-major, pitch 10
    problem = describe(a, b, None, torch.zeros(4, 6), alpha=1.0, beta=None)
    assert (problem.a.rows, problem.a.cols, problem.a.pitch, problem.a.col_major) == (4, 8, 20, True)
    assert (problem.b.rows, problem.b.cols, problem.b.pitch, problem.b.col_major) == (8, 6, 10, False)
    assert problem.mnk == (4, 6, 8)


@pytest.mark.parametrize(
    "beta, with_c, expected", [(None, True, 1.0), (None, False, 0.0), (0.25, True, 0.25)]
)
def test_beta_defaults(beta: float | None, with_c: bool, expected: float) -> None:
    """beta is 1 with c and 0 without, unless given."""
    a, b, c = tensors()
    problem = describe(a, b, c if with_c else None, torch.zeros(4, 6), alpha=1.0, beta=beta)
    assert problem.beta == expected
    assert (problem.c is not None) == (expected != 0)


def test_c_is_dropped_when_beta_is_zero() -> None:
    """With beta = 0 the problem has no C, so no kernel can read it."""
    a, b, c = tensors()
    assert describe(a, b, c, torch.zeros(4, 6), alpha=1.0, beta=0.0).c is None


def test_arguments_are_packed_as_an_array_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address leads to its argument's bytes; a workspace pointer counts from the workspace's base."""
    encoded = launch.driver.CUtensorMap()
    monkeypatch.setattr(launch, "encode", lambda described: encoded)
    described = TensorMap("bf16", 0, (64, 64), 128, (64, 64))
    arguments = (described, ctypes.c_int(7), ctypes.c_float(0.5), ctypes.c_void_p(0), Workspace(16))
    values, addresses = launch._pack(Launch("gemm", (1, 1, 1), 32, 0, arguments), 0x1000)
    assert len(values) == len(addresses) == 5
    assert addresses[0] == encoded.getPtr()
    assert ctypes.c_int.from_address(addresses[1]).value == 7
    assert ctypes.c_float.from_address(addresses[2]).value == 0.5
    assert ctypes.c_void_p.from_address(addresses[3]).value is None
    assert ctypes.c_void_p.from_address(addresses[4]).value == 0x1010
