# SPDX-License-Identifier: Apache-2.0
"""Names, torch dtypes and enum members all mean the same types."""

import subprocess
import sys

import pytest
import torch

from cutegemm import DType
from cutegemm.dtypes import as_dtype
from cutegemm.errors import SpecError

RULE = "must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32"


@pytest.mark.parametrize(
    ("names", "expected", "size"),
    [
        (("fp16", "float16", "half", "f16", "torch.float16", torch.float16, DType.FP16), DType.FP16, 2),
        (("bf16", "bfloat16", "BF16", torch.bfloat16, DType.BF16), DType.BF16, 2),
        (("fp32", "float32", "float", "f32", torch.float32, torch.float, DType.FP32), DType.FP32, 4),
        (
            ("fp8", "e4m3", "fp8_e4m3", "float8_e4m3fn", torch.float8_e4m3fn, DType.FP8_E4M3),
            DType.FP8_E4M3,
            1,
        ),
        (("e5m2", "fp8_e5m2", "float8_e5m2", torch.float8_e5m2, DType.FP8_E5M2), DType.FP8_E5M2, 1),
    ],
)
def test_every_spelling_of_a_type(names, expected, size):
    """Names, torch dtypes and members give the member, with its width."""
    for name in names:
        assert as_dtype(name) is expected
    assert (expected.bytes, expected.bits) == (size, 8 * size)


def test_members_print_as_what_a_spec_accepts():
    """The repr of a type, evaluated, is a legal dtype again."""
    for dtype in DType:
        assert as_dtype(eval(repr(dtype))) is dtype


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fp4", f"d_dtype='fp4': {RULE}"),
        (torch.int16, f"d_dtype=torch.int16: {RULE}"),
        (None, f"d_dtype=None: {RULE}"),
        (16, f"d_dtype=16: {RULE}"),
    ],
)
def test_other_types_are_refused(value, message):
    """What no kernel computes with is refused under the field's name."""
    with pytest.raises(SpecError) as e:
        as_dtype(value, "d_dtype")
    assert str(e.value) == message


def test_no_torch_is_needed():
    """Importing the types does not import torch."""
    code = "import sys, cutegemm.dtypes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
