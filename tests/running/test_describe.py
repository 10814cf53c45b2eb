# SPDX-License-Identifier: Apache-2.0
"""Every bad input to `run` has its own message, is refused before anything is written, and costs nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cutegemm
from cutegemm import DType, GemmSpec
from cutegemm import epilogue as epi
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import InputError, PlanError
from cutegemm.gemm import Gemm, representative
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.check import aligned
from cutegemm.running.arguments.describe import describe
from tests.support.described import BF16, A, B, C, bare, t
from tests.support.memory import Layout, guarded


def plain(a, b):
    """The validated call of a @ b."""
    request = Request(a, b)
    return aligned(describe(linear_combination(False), request), request)


INPUT_TYPES = "must be float16, bfloat16, float32, float8_e4m3fn or float8_e5m2"
STORED_TYPES = "must be float16, bfloat16, float32, float8_e4m3fn, float8_e5m2, int8 or uint8"


REFUSALS = {
    "a list": ((lambda: ([[1.0]], t(8, 8), None)), "a: must be a torch.Tensor, got list"),
    "no b": ((lambda: (t(8, 8), None, None)), "b: must be a torch.Tensor, got NoneType"),
    "a number as c": ((lambda: (t(8, 8), t(8, 8), 1.0)), "c: must be a torch.Tensor, got float"),
    "rank 1": (
        (lambda: (t(8), t(8, 8), None)),
        "a.shape=(8,): must have 2 or 3 dimensions (matrix, or batch of them)",
    ),
    "rank 4": (
        (lambda: (t(8, 8), t(1, 1, 8, 8), None)),
        "b.shape=(1, 1, 8, 8): must have 2 or 3 dimensions (matrix, or batch of them)",
    ),
    "int16": (
        (lambda: (t(8, 8, dtype=torch.int16), t(8, 8), None)),
        "a.dtype=torch.int16: must be float16, bfloat16, float32, float8_e4m3fn, float8_e5m2, int8 or uint8",
    ),
    "fp8 by bf16": (
        (lambda: (t(8, 8).to(torch.float8_e4m3fn), t(8, 8), None)),
        "b.dtype=torch.bfloat16: must be torch.float8_e4m3fn or torch.float8_e5m2: the other operand is "
        "torch.float8_e4m3fn",
    ),
    "fp8 by int8": (
        (lambda: (t(8, 8).to(torch.float8_e5m2), t(8, 8).to(torch.int8), None)),
        "b.dtype=torch.int8: must be torch.float8_e4m3fn or torch.float8_e5m2: the other operand is torch.float8_e5m2",
    ),
    "float64 c": (
        (lambda: (t(8, 8), t(8, 8), t(8, 8, dtype=torch.float64))),
        f"c.dtype=torch.float64: {INPUT_TYPES}",
    ),
    "sparse": ((lambda: (t(8, 8).to_sparse(), t(8, 8), None)), "a.layout=torch.sparse_coo: must be strided"),
    "mixed dtypes": (
        (lambda: (t(8, 8), t(8, 8, dtype=torch.float16), None)),
        "b.dtype=torch.float16: must be a's dtype, torch.bfloat16",
    ),
    "mixed devices": (
        (lambda: (t(8, 8), t(8, 8, device="meta"), None)),
        "b.device='meta': must be a's device, cpu",
    ),
    "c elsewhere": (
        (lambda: (t(8, 8), t(8, 8), t(8, 8, device="meta"))),
        "c.device='meta': must be a's device, cpu",
    ),
    "inner extents": (
        (lambda: (t(8, 7), t(8, 9), None)),
        "b.shape=(8, 9): a is (8, 7), so b must have 7 rows (K)",
    ),
    "batches": (
        (lambda: (t(2, 8, 8), t(3, 8, 8), None)),
        "a.shape=(2, 8, 8): batch must be 1 or 3",
    ),
    "empty beside full batch": (
        (lambda: (t(0, 8, 8), t(3, 8, 8), None)),
        "b.shape=(3, 8, 8): batch must be 1 or 0",
    ),
    "c's shape": ((lambda: (t(8, 8), t(8, 9), t(9, 8))), "c.shape=(9, 8): must be (8, 9)"),
    "c's rank": ((lambda: (t(8, 8), t(8, 9), t(1, 8, 9))), "c.shape=(1, 8, 9): must be (8, 9)"),
    "c's batch": ((lambda: (t(2, 8, 8), t(8, 9), t(3, 8, 9))), "c.shape=(3, 8, 9): must be (2, 8, 9)"),
    "autograd": (
        (lambda: (t(8, 8, requires_grad=True), t(8, 8), None)),
        "a.requires_grad=True: there is no backward pass; use torch.no_grad() or detach()",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_bad_inputs_word_for_word(name):
    """Each bad input has its own message, and `out` keeps its poison."""
    make, message = REFUSALS[name]
    a, b, c = make()
    out = guarded((8, 9), (9, 1), BF16)
    for given_out in (None, out.view):
        with pytest.raises(InputError) as e:
            bare().run(a, b, c, out=given_out)
        assert str(e.value) == message
    assert out.unwritten()


BAD_OUTS = {
    "shape": ((lambda: t(7, 6)), "out.shape=(7, 6): must be (6, 7)"),
    "rank": ((lambda: t(1, 6, 7)), "out.shape=(1, 6, 7): must be (6, 7)"),
    "dtype": ((lambda: t(6, 7, dtype=torch.int64)), f"out.dtype=torch.int64: {STORED_TYPES}"),
    "expanded": ((lambda: t(1, 7).expand(6, 7)), "out.stride()=(0, 1): two elements of out share memory"),
    "interleaved": (
        (lambda: t(64).as_strided((6, 7), (6, 1))),
        "out.stride()=(6, 1): two elements of out share memory",
    ),
    "device": ((lambda: t(6, 7, device="meta")), "out.device='meta': must be a's device, cpu"),
}


@pytest.mark.parametrize("name", BAD_OUTS)
def test_bad_outs_word_for_word(name):
    """An `out` of another shape, type or device, or one that overlaps itself, is refused."""
    make, message = BAD_OUTS[name]
    with pytest.raises(InputError) as e:
        bare().run(A, B, C, out=make())
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.5}, "beta=0.5: needs c; nearest legal value: 0.0"),
        ({"backend": "cuda"}, "backend='cuda': must be one of gpu, reference, emulator"),
        ({"backend": "gpu"}, "backend='gpu': the tensors are on cpu; nearest legal value: 'reference'"),
    ],
)
def test_bad_options_word_for_word(options, message):
    """beta without C and backends that cannot serve are refused."""
    with pytest.raises(InputError) as e:
        bare().run(A, B, **options)
    assert str(e.value) == message


def test_the_spec_is_checked_against_the_tensors():
    """Tensors of another type or major than the spec declares are refused on the CPU as on the GPU."""
    with pytest.raises(PlanError, match="^a_dtype='fp16': the problem's A is bf16"):
        Gemm(GemmSpec(a_dtype="fp16"), representative(GemmSpec())).run(A, B)
    with pytest.raises(PlanError, match="^a_load='tma': TMA cannot address A: leading stride is 10 bytes"):
        Gemm(GemmSpec(a_load="tma"), representative(GemmSpec())).run(A, B)


def test_no_grad_and_detach_are_the_ways_out():
    """What the autograd refusal advises works."""
    a = t(6, 5, requires_grad=True)
    with torch.no_grad():
        assert bare().run(a, B).shape == (6, 7)
    assert bare().run(a.detach(), B).shape == (6, 7)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 7), st.booleans(), st.sampled_from((1, 2)))
def test_operands_describe_where_elements_lie(rows, cols, offset, row_major, unit):
    """The described strides and alignment locate every element of the tensor."""
    layout = Layout(row_major=row_major, unit=unit, pad=3, aligned=False, offset=offset)
    a = layout.make((rows, cols), BF16).view
    b = torch.zeros(cols, 4, dtype=BF16)
    p = plain(a, b).problem
    assert (p.m, p.n, p.k, p.batch) == (rows, 4, cols, 1) and p.a.dtype is DType.BF16
    for i in range(rows):
        for j in range(cols):
            assert i * p.a.strides[0] + j * p.a.strides[1] == i * a.stride(0) + j * a.stride(1)
    assert a.data_ptr() % p.a.align == 0 and (p.a.align == 16 or a.data_ptr() % (2 * p.a.align))


@pytest.mark.parametrize(
    ("a", "b", "batch", "batch_a", "batch_b", "out"),
    [
        ((6, 5), (5, 7), 1, 1, 1, (6, 7)),
        ((3, 6, 5), (5, 7), 3, 3, 1, (3, 6, 7)),
        ((6, 5), (3, 5, 7), 3, 1, 3, (3, 6, 7)),
        ((3, 6, 5), (3, 5, 7), 3, 3, 3, (3, 6, 7)),
        ((1, 6, 5), (3, 5, 7), 3, 1, 3, (3, 6, 7)),
        ((1, 6, 5), (5, 7), 1, 1, 1, (1, 6, 7)),
        ((0, 6, 5), (5, 7), 0, 0, 0, (0, 6, 7)),
    ],
)
def test_batches_and_broadcasts(a, b, batch, batch_a, batch_b, out):
    """2-D operands and batches of one serve every batch."""
    call = plain(t(*a), t(*b))
    p = call.problem
    assert (p.batch, p.a.batch, p.b.batch, p.d.batch) == (batch, batch_a, batch_b, batch)
    assert [(x.name, x.shape) for x in call.outputs] == [("d", out)]


def test_an_expanded_batch_is_a_broadcast():
    """A batch stride of 0 is one matrix that serves every batch."""
    p = plain(t(1, 6, 5).expand(4, 6, 5), t(4, 5, 7)).problem
    assert (p.batch, p.a.batch, p.b.batch) == (4, 1, 4)


@epi.define
def several(acc, *, c: epi.Matrix, bias: epi.Row, gain: epi.Col, scale: epi.Scalar):
    """Inputs of every shape, two matrices and a reduction."""
    h = acc * gain + bias
    return epi.Output(
        d=h * scale + c,
        pre=epi.Store(h, dtype="fp32", major="m"),
        rows=epi.Sum(h, axis=1),
        top=epi.Max(h, axis=0, partial=True),
    )


def fused(**changed):
    """A legal call of `several` for (3, 6, 5) @ (5, 7) with some tensors replaced; "out" holds the outputs."""
    inputs = {"c": t(3, 6, 7), "bias": t(7), "gain": t(3, 6), "scale": 2.0} | changed
    spec = GemmSpec(epilogue=several)
    return Gemm(spec, representative(spec)).run(t(3, 6, 5), t(5, 7), **inputs)


BAD_FUSED = {
    "a row of M": ({"bias": t(6)}, "bias.shape=(6,): must be (3, 7)"),
    "a row as matrix": ({"bias": t(1, 1, 7)}, "bias.shape=(1, 1, 7): must have 1 or 2 dimensions"),
    "a column of N": ({"gain": t(7)}, "gain.shape=(7,): must be (3, 6)"),
    "a column's batch": ({"gain": t(2, 6)}, "gain.shape=(2, 6): must be (3, 6)"),
    "a matrix of one row": ({"c": t(1, 7)}, "c.shape=(1, 7): must be (3, 6, 7)"),
    "a vector as matrix": ({"c": t(7)}, "c.shape=(7,): must have 2 or 3 dimensions (matrix, or batch of them)"),
    "a 1-d scalar": ({"scale": t(1, dtype=torch.float32)}, "scale.shape=(1,): must have 0 dimensions"),
    "a bf16 scalar": ({"scale": t()}, "scale.dtype=torch.bfloat16: must be float32"),
    "a scalar elsewhere": (
        {"scale": t(device="meta", dtype=torch.float32)}, "scale.device='meta': must be a's device, cpu"),
    "an integer row": ({"bias": t(7, dtype=torch.int32)}, f"bias.dtype=torch.int32: {INPUT_TYPES}"),
    "gradients": (
        {"bias": t(7, requires_grad=True)},
        "bias.requires_grad=True: there is no backward pass; use torch.no_grad() or detach()",
    ),
    "an output's shape": ({"out": {"pre": t(6, 7, dtype=torch.float32)}}, "pre.shape=(6, 7): must be (3, 6, 7)"),
    "an output's type": (
        {"out": {"pre": t(3, 7, 6).mT}}, "pre.dtype=torch.bfloat16: the epilogue stores fp32"),
    "an output's major": (
        {"out": {"pre": t(3, 6, 7, dtype=torch.float32)}},
        "pre.stride()=(42, 7, 1): the epilogue stores it m-major",
    ),
    "a reduction's shape": (
        {"out": {"rows": t(6, dtype=torch.float32)}},
        "rows: is (6,) of torch.float32, must be (3, 6) of torch.float32, contiguous",
    ),
    "a reduction's type": (
        {"out": {"rows": t(3, 6)}}, "rows: is (3, 6) of torch.bfloat16, must be (3, 6) of torch.float32, contiguous"),
    "a reduction's strides": (
        {"out": {"rows": t(6, 3, dtype=torch.float32).t()}},
        "rows: is (3, 6) of torch.float32, must be (3, 6) of torch.float32, contiguous",
    ),
    "a partial output": (
        {"out": {"top": t(3, 7, dtype=torch.float32)}},
        "top: partial results have a layout that depends on the tile, so they cannot be given",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FUSED)
def test_bad_fused_calls_word_for_word(name):
    """Each tensor of a fused call is checked against what the epilogue says of it."""
    changed, message = BAD_FUSED[name]
    fused()
    with pytest.raises(InputError) as e:
        fused(**changed)
    assert str(e.value) == message


def test_an_outputs_major_is_about_strides_that_address_something():
    """An m-major output of one row or one column may have any strides along them."""
    inputs = {"c": t(6, 1), "bias": t(1), "gain": t(6), "scale": 2.0}
    gemm = Gemm(GemmSpec(epilogue=several), representative(GemmSpec(epilogue=several)))
    column = t(6, 1, dtype=torch.float32)
    assert gemm.run(t(6, 5), t(5, 1), out={"pre": column}, **inputs).pre is column
    row = t(1, 7, dtype=torch.float32)
    inputs = {"c": t(1, 7), "bias": t(7), "gain": t(1), "scale": 2.0}
    assert gemm.run(t(1, 5), t(5, 7), out={"pre": row}, **inputs).pre is row


def test_a_gated_product_needs_an_even_width():
    """B's columns are two equal halves."""
    graph = epi.define(lambda gate, up: gate * up, gated="halves")
    with pytest.raises(InputError) as e:
        Gemm(GemmSpec(epilogue=graph), representative(GemmSpec(epilogue=graph))).run(t(6, 5), t(5, 7))
    assert str(e.value) == "b.shape=(5, 7): a gated pair needs an even number of columns"


def test_a_fused_call_described():
    """Rows are 1 x N, columns M x 1, each with its own batch; outputs not given lie as the epilogue says."""
    inputs = {"c": t(6, 7), "bias": t(3, 7), "gain": t(6), "scale": t(dtype=torch.float32)}
    call = describe(several, Request(t(3, 6, 5), t(5, 7), inputs), DType.FP16)
    p = call.problem
    found = {name: (x.rows, x.cols, x.batch, x.strides[:2]) for name, x in (*p.inputs, *p.outputs)}
    assert found == {
        "c": (6, 7, 1, (7, 1)), "bias": (1, 7, 3, (8, 1)), "gain": (6, 1, 1, (1, 8)),
        "d": (6, 7, 3, (7, 1)), "pre": (6, 7, 3, (1, 6)),
    }  # fmt: skip
    assert p.device_scalars == ("scale",) and (p.d.dtype, dict(p.outputs)["pre"].dtype) == (
        DType.FP16,
        DType.FP32,
    )
    assert [(x.name, x.shape, x.dtype, x.order) for x in call.outputs] == [
        ("d", (3, 6, 7), DType.FP16, None), ("pre", (3, 6, 7), DType.FP32, (0, 2, 1)),
        ("rows", (3, 6), DType.FP32, None), ("top", (3, 7), DType.FP32, None),
    ]  # fmt: skip


def test_every_input_error_is_a_gemm_error():
    """One except clause at the call site is enough."""
    with pytest.raises(cutegemm.GemmError):
        bare().run(t(2, 3), t(4, 5))
