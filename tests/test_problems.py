# SPDX-License-Identifier: Apache-2.0
"""Problems as shapes and strides: what TMA can address, and strides that address nothing."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import DType, Operand, Problem, problem
from cutegemm.config.numbers import round_up
from cutegemm.errors import InputError, SpecError
from cutegemm.problems import MOST_STRIDE
from tests.support.strategies import operands


def operand(strides, rows=64, cols=64, batch=1, align=16, dtype=DType.BF16):
    """A matrix with the given strides."""
    return Operand(dtype=dtype, rows=rows, cols=cols, strides=strides, batch=batch, align=align)


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (operand((64, 1, 4096)), None),
        (operand((1, 64, 4096)), None),
        (operand((72, 1, 4608), batch=3), None),
        (operand((68, 1, 0), dtype=DType.FP32), None),
        (operand((2, 64, 0)), "neither dimension has unit stride"),
        (operand((64, 1, 0), align=8), "base address is aligned to 8 bytes, not 16"),
        (operand((65, 1, 0)), "leading stride is 130 bytes, not a multiple of 16"),
        (operand((1, 100, 0)), "leading stride is 200 bytes, not a multiple of 16"),
        (operand((66, 1, 0), dtype=DType.FP32), "leading stride is 264 bytes, not a multiple of 16"),
        (operand((64, 1, 4097), batch=2), "batch stride is 8194 bytes, not a multiple of 16"),
        (operand((0, 1, 0)), "leading stride of 0 bytes is outside (0, 2**40)"),
        (operand((1 << 39, 1, 0)), "leading stride of 1099511627776 bytes is outside (0, 2**40)"),
        (operand((64, 1, 1 << 40), batch=2), "batch stride of 2199023255552 bytes is outside (0, 2**40)"),
    ],
)
def test_why_tma_cannot_address(matrix, reason):
    """Base, leading and batch strides must be multiples of 16 bytes below 2**40, and one stride must be 1."""
    assert matrix.tma_reason() == reason


def offsets(matrix):
    """Every element's offset, by brute force."""
    index = itertools.product(range(matrix.batch), range(matrix.rows), range(matrix.cols))
    row, col, step = matrix.strides
    return [b * step + i * row + j * col for b, i, j in index]


@given(st.integers(0, 5), st.integers(0, 5), st.sampled_from((1, 2, 3)), st.data())
def test_canonical_strides_address_the_same_elements(rows, cols, batch, data):
    """Replacing strides of extents 0 and 1 moves no element."""
    strides = data.draw(st.tuples(*[st.integers(0, 20)] * 3))
    matrix = operand(strides, rows, cols, batch)
    row, col, step = strides
    expected = [b * step + i * row + j * col for b in range(batch) for i in range(rows) for j in range(cols)]
    assert offsets(matrix) == expected


@given(st.integers(1, 300), st.sampled_from(tuple(DType)), st.booleans())
def test_contiguous_vectors_are_addressable(length, dtype, is_row):
    """A contiguous row or column vector can be loaded by TMA whatever its length."""
    rows, cols = (1, length) if is_row else (length, 1)
    vector = operand((length, 1, 0) if is_row else (1, length, 0), rows, cols, dtype=dtype)
    assert vector.tma_reason() is None


@given(st.data())
def test_canonical_strides_are_stable(data):
    """Making an operand of an operand's strides changes nothing."""
    x = data.draw(operands(data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9)), DType.FP16, 2))
    assert operand(x.strides, x.rows, x.cols, x.batch, x.align, x.dtype).strides == x.strides


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_round_up(value, step):
    """The least multiple that is not below the value."""
    up = round_up(value, step)
    assert up % step == 0 and value <= up < value + step


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"m": -1}, "m=-1: must be from 0 to 2147483647; nearest legal value: 0"),
        ({"n": 1 << 31}, "n=2147483648: must be from 0 to 2147483647; nearest legal value: 2147483647"),
        ({"k": -5}, "k=-5: must be from 0 to 2147483647; nearest legal value: 0"),
        ({"batch": -2}, "batch=-2: must be from 0 to 2147483647; nearest legal value: 0"),
    ],
)
def test_extents_out_of_range(fields, message):
    """Negative extents, and those beyond signed 32-bit coordinates, are refused."""
    base = problem(8, 8, 8)
    values = {"m": 8, "n": 8, "k": 8, "batch": 1} | fields
    with pytest.raises(InputError) as e:
        Problem(**values, a=base.a, b=base.b, outputs=base.outputs)
    assert str(e.value) == message


@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
@pytest.mark.parametrize("d_major", ["n", "m"])
def test_majors_of_a_contiguous_problem(majors, d_major):
    """The letters name each operand's unit-stride axis; C lies like D."""
    p = problem(24, 40, 56, majors=majors, d_major=d_major, c_dtype="fp32", d_dtype="fp16", batch=2)
    assert p.a.strides == ((56, 1, 24 * 56) if majors[0] == "k" else (1, 24, 24 * 56))
    assert p.b.strides == ((40, 1, 56 * 40) if majors[1] == "n" else (1, 56, 56 * 40))
    assert p.d.strides == p.c.strides == ((40, 1, 24 * 40) if d_major == "n" else (1, 24, 24 * 40))
    assert (p.a.dtype, p.b.dtype, p.c.dtype, p.d.dtype) == (DType.BF16, DType.BF16, DType.FP32, DType.FP16)


def test_operands_of_two_types():
    """`b_dtype` is the type of B; D's default is that of A's type; pairs without an instruction are refused."""
    p = problem(24, 40, 56, dtype="e4m3", b_dtype="e5m2", batch=2)
    assert (p.a.dtype, p.b.dtype, p.d.dtype) == (DType.FP8_E4M3, DType.FP8_E5M2, DType.BF16)
    whole = problem(24, 40, 56, dtype="int8", b_dtype="uint8")
    assert (whole.types, p.types, whole.d.dtype) == ("int8 x uint8", "fp8_e4m3 x fp8_e5m2", DType.INT32)
    assert problem(24, 40, 56, dtype="fp16", b_dtype="fp16") == problem(24, 40, 56, dtype="fp16")


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (("bf16", "fp16"), "b_dtype='fp16': A is bf16, B must be bf16; nearest legal value: 'bf16'"),
        (
            ("fp8", "int8"),
            "b_dtype='int8': A is fp8_e4m3, B must be fp8_e4m3 or fp8_e5m2; nearest legal value: 'fp8_e4m3'",
        ),
        (
            ("int8", "int32"),
            "b_dtype='int32': operands are fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8 or uint8",
        ),
        (
            ("int32", "int8"),
            "dtype='int32': operands are fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8 or uint8",
        ),
    ],
)
def test_types_that_no_kernel_multiplies(types, message):
    """The refusal names the argument, the other operand's type and the legal types."""
    with pytest.raises(SpecError) as error:
        problem(8, 8, 8, dtype=types[0], b_dtype=types[1])
    assert str(error.value).startswith(message)


def test_work_of_a_problem():
    """FLOPs count multiplications and additions; bytes count every operand once."""
    p = problem(2, 3, 5, batch=7, dtype="fp16", d_dtype="fp32", c_dtype="bf16")
    assert p.flops == 2 * 2 * 3 * 5 * 7
    assert p.min_bytes == 7 * (2 * 5 * 2 + 5 * 3 * 2 + 2 * 3 * 4 + 2 * 3 * 2)


DTYPE_RULE = "must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32"
WRONG = [
    ({"m": "a"}, InputError, "m='a': must be an integer from 0 to 2147483647"),
    ({"m": 1.5}, InputError, "m=1.5: must be an integer from 0 to 2147483647"),
    ({"k": True}, InputError, "k=True: must be an integer from 0 to 2147483647"),
    ({"batch": None}, InputError, "batch=None: must be an integer from 0 to 2147483647"),
    ({"majors": "nn"}, InputError, "majors='nn': must be one of kn, kk, mn, mk"),
    ({"majors": ("k", "n")}, InputError, "majors=('k', 'n'): must be one of kn, kk, mn, mk"),
    ({"d_major": "k"}, InputError, "d_major='k': must be one of n, m"),
    ({"dtype": "fp4"}, SpecError, f"dtype='fp4': {DTYPE_RULE}"),
    ({"c_dtype": "fp4"}, SpecError, f"c_dtype='fp4': {DTYPE_RULE}"),
    ({"d_dtype": 3}, SpecError, "d_dtype=3: must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32"),
    ({"input_dtype": "fp4"}, SpecError, f"input_dtype='fp4': {DTYPE_RULE}"),
    ({"epilogue": "relu"}, InputError, "epilogue='relu': must be an epilogue graph"),
    ({"device_scalars": "alpha"}, InputError,
     "device_scalars='alpha': must be a tuple of names; nearest legal value: ('alpha',)"),
    ({"device_scalars": (1,)}, InputError, "device_scalars=(1,): must be a tuple of names"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kind", "message"), WRONG, ids=[m.split(":")[0] for *_, m in WRONG])
def test_what_describes_no_problem_is_refused(fields, kind, message):
    """`problem` names the argument, its value and the rule, whatever was passed."""
    with pytest.raises(kind) as e:
        problem(**{"m": 8, "n": 8, "k": 8} | fields)
    assert str(e.value) == message


def test_any_integers_lists_and_mappings_are_taken_and_made_plain():
    """NumPy's integers, lists and mappings describe the same problem, of the same hash, as Python's own."""
    plain = problem(8, 16, 32, batch=2, c_dtype="fp32")
    taken = problem(
        np.int64(8), np.uint8(16), np.int16(32), batch=np.int32(2), c_dtype="fp32", device_scalars=[]
    )
    assert taken == plain and hash(taken) == hash(plain) and type(taken.m) is int
    made = Problem(
        m=8, n=16, k=32, batch=2, a=plain.a, b=plain.b, inputs=dict(plain.inputs), outputs=list(plain.outputs)
    )
    assert made == plain and hash(made) == hash(plain)
    x = Operand(dtype="bf16", rows=np.int64(8), cols=8, strides=[np.int64(8), 1, 64])
    assert x == Operand(dtype=DType.BF16, rows=8, cols=8, strides=(8, 1, 64)) and type(x.strides[0]) is int


STRIDES_RULE = "must be three integers: the strides of row, column and batch in elements"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 1.0}, "rows=1.0: must be an integer from 0 to 2147483647"),
        ({"align": 0}, "align=0: must be from 1 to 16; nearest legal value: 1"),
        ({"strides": (8, 1)}, f"strides=(8, 1): {STRIDES_RULE}"),
        ({"strides": None}, f"strides=None: {STRIDES_RULE}"),
        (
            {"strides": (1 << 63, 1, 0)},
            f"strides=({1 << 63}, 1, 0): must be from -{MOST_STRIDE} to {MOST_STRIDE}, because kernels take 64-bit "
            "strides",
        ),
    ],
)
def test_an_operand_of_other_things_is_refused(fields, message):
    """An operand's numbers are integers, within what an address can be."""
    with pytest.raises(InputError) as e:
        Operand(**{"dtype": DType.BF16, "rows": 8, "cols": 8, "strides": (8, 1, 0)} | fields)
    assert str(e.value) == message


def test_a_stride_that_addresses_nothing_is_one_that_a_kernel_takes():
    """That of a single batch, too, whatever the stride of its rows."""
    x = Operand(dtype="bf16", rows=64, cols=64, strides=(MOST_STRIDE, 1, 0))
    assert max(x.strides) <= MOST_STRIDE and x.strides[2] % 8 == 0


@pytest.mark.parametrize("value", [None, 3, "d", [("d", 3)], {"d": None}, [1]], ids=repr)
@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_named_operands_are_pairs(name, value):
    """Inputs and outputs that are no pairs of a name and an operand are refused by name."""
    base = problem(8, 8, 8)
    fields = {"m": 8, "n": 8, "k": 8, "batch": 1, "a": base.a, "b": base.b, "outputs": base.outputs} | {
        name: value
    }
    with pytest.raises(InputError, match=f"^{name}=.*: must be pairs of a name and an Operand"):
        Problem(**fields)
    with pytest.raises(InputError, match="^a=.*: must be an Operand"):
        Problem(**fields | {"a": value, name: ()})
