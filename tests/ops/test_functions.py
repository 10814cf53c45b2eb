# SPDX-License-Identifier: Apache-2.0
"""`matmul`, `linear` and `bmm`: values, fallbacks, what they refuse, and how often they plan."""

import functools
import subprocess
import sys
import warnings

import pytest
import torch
from torch.nn import functional as F

import cutegemm
from cutegemm import GemmSpec, linear, matmul, ops
from cutegemm import epilogue as epi
from cutegemm.errors import GemmError, HardwareError, InputError, SpecError
from cutegemm.ops import entry_points, fallback, products, program
from tests.support.patience import PATIENCE
from tests.support.torch_ops import error


def r(*shape, dtype=torch.float32):
    """Random elements."""
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("how", ["torch", "reference"])
def test_linear_takes_any_leading_dimensions(how):
    """x of one to four dimensions, with and without a bias, as torch has it."""
    weight, bias = r(7, 12), r(7)
    for lead in ((), (3,), (2, 3), (2, 1, 3), (0, 3)):
        x = r(*lead, 12)
        assert torch.allclose(
            cutegemm.linear(x, weight, bias, fallback=how), F.linear(x, weight, bias), atol=1e-5
        )
        assert torch.allclose(cutegemm.linear(x, weight, fallback=how), F.linear(x, weight), atol=1e-5)


@pytest.mark.parametrize("how", ["torch", "reference"])
def test_matmul_is_the_blas_formula(how):
    """alpha, beta and C, batches and broadcasts, with beta = 0 a C that is not read."""
    a, b, c = r(9, 12), r(12, 7), r(9, 7)
    assert torch.allclose(
        cutegemm.matmul(a, b, c, alpha=2.0, beta=0.5, fallback=how), 2 * a @ b + c / 2, atol=1e-4
    )
    assert torch.allclose(cutegemm.matmul(a, b, c, fallback=how), a @ b + c, atol=1e-4)
    unread = torch.full_like(c, float("nan"))
    assert torch.allclose(cutegemm.matmul(a, b, unread, beta=0.0, fallback=how), a @ b, atol=1e-4)
    a3, b3, c3 = r(3, 9, 12), r(3, 12, 7), r(3, 9, 7)
    assert torch.allclose(cutegemm.matmul(a3, b, c3, alpha=2, fallback=how), 2 * a3 @ b + c3, atol=1e-4)
    assert torch.allclose(cutegemm.matmul(a, b3, alpha=3, fallback=how), 3 * (a @ b3), atol=1e-4)
    assert torch.allclose(cutegemm.matmul(a3, b3, c3, beta=2, fallback=how), a3 @ b3 + 2 * c3, atol=1e-4)
    assert torch.allclose(cutegemm.bmm(a3, b3, fallback=how), a3 @ b3, atol=1e-4)


@pytest.mark.parametrize("how", ["torch", "reference", "emulator"])
def test_alpha_and_beta_may_be_tensors(how):
    """0-d fp32 tensors do what numbers do, for operands of integers too; others are refused."""
    a, b, c = r(9, 12), r(12, 7), r(9, 7)
    alpha, beta = torch.tensor(2.0), torch.tensor(0.5)
    matmul = functools.partial(cutegemm.matmul, fallback=how)
    assert torch.allclose(matmul(a, b, alpha=alpha), 2 * a @ b, atol=1e-4)
    assert torch.allclose(matmul(a, b, c, alpha=alpha, beta=beta), 2 * a @ b + c / 2, atol=1e-4)
    assert torch.allclose(matmul(a, b, c, beta=beta, out=torch.empty(9, 7)), a @ b + c / 2, atol=1e-4)
    whole = torch.ones(16, 16, dtype=torch.int8)
    assert torch.equal(matmul(whole, whole, alpha=alpha), torch.full((16, 16), 32, dtype=torch.int32))
    for wrong in (torch.ones(2), torch.tensor(2), torch.tensor(2.0).double(), torch.ones(1)):
        for named in ({"alpha": wrong}, {"beta": wrong}, {"c": c, "beta": wrong}):
            with pytest.raises(InputError, match=r"^(alpha|beta)=.*must be a number or a 0-d fp32 tensor"):
                matmul(a, b, **named)
    with pytest.raises(InputError, match="needs c"):
        matmul(a, b, beta=beta)


@pytest.mark.parametrize("how", ["torch", "reference"])
def test_out_is_written_and_may_be_accumulated_into(how):
    """out= is what comes back; with c = out and beta = 1 the product is added to it."""
    a, b = r(9, 12), r(12, 7)
    out = r(9, 7)
    before = out.clone()
    assert cutegemm.matmul(a, b, out, beta=1.0, out=out, fallback=how) is out
    assert torch.allclose(out, before + a @ b, atol=1e-4)
    x, y = r(2, 3, 12), torch.empty(2, 3, 7)
    assert cutegemm.linear(x, b.t(), out=y, fallback=how) is y
    assert torch.allclose(y, x @ b, atol=1e-4)


@epi.define
def many(acc, *, bias: epi.Row, rest: epi.Matrix, per_row: epi.Col, scale: epi.Scalar):
    """An input of every kind, outputs of every kind."""
    h = epi.tanh(acc * scale + bias) * per_row
    return epi.Output(
        d=h + rest,
        h=epi.Store(h, dtype="bf16"),
        total=epi.Sum(h),
        rows=epi.Max(h, axis=1),
        cols=epi.Sum(h, axis=0),
    )


@pytest.mark.parametrize("scale", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_an_epilogue_reads_and_gives_what_has_the_leading_dimensions(scale):
    """Rows, columns, matrices and scalars by name; outputs as attributes, folded back."""
    x, w, bias, rest, per_row = r(2, 3, 12), r(7, 12), r(7), r(2, 3, 7), r(2, 3)
    out = cutegemm.linear(
        x, w, bias, epilogue=many, rest=rest, per_row=per_row, scale=scale, fallback="reference"
    )
    h = torch.tanh(x @ w.t() * 0.5 + bias) * per_row[..., None]
    assert out.h.dtype == torch.bfloat16 and out.h.shape == (2, 3, 7)
    for found, expected in (
        (out.d, h + rest), (out.total, h.sum()), (out.rows, h.amax(-1)), (out.cols, h.sum((0, 1))),
    ):  # fmt: skip
        assert error(found, expected) < 1e-5


def test_the_emulator_runs_the_compiled_kernel_behind_the_same_door():
    """fallback="emulator": a linear layer on the kernel itself."""
    x, w, bias = (r(*s, dtype=torch.bfloat16) for s in ((5, 3, 24), (16, 24), (16,)))
    found = cutegemm.linear(x, w, bias, fallback="emulator")
    assert error(found, F.linear(x.double(), w.double(), bias.double())) < 5e-3


def test_without_a_hopper_gpu_it_says_so_once_or_refuses():
    """One note a door for torch's own functions; fallback="error" refuses; another word is no fallback."""
    a = r(4, 4)
    fallback._noted.clear()
    entry_points._remembered.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            cutegemm.matmul(a, a)
            cutegemm.linear(a, a)
    assert [str(x.message).split(":")[0] for x in caught] == ["cutegemm.matmul", "cutegemm.linear"]
    with pytest.raises(HardwareError, match="cutegemm.linear: device 'cpu' is not a Hopper GPU"):
        cutegemm.linear(a, a, fallback="error")
    with pytest.raises(InputError, match="must be one of torch, error, reference, emulator"):
        cutegemm.matmul(a, a, fallback="eager")


REFUSED = {
    "no tensor": (lambda a: cutegemm.matmul([1], a), InputError, "a: must be a torch.Tensor, got list"),
    "not read": (lambda a: cutegemm.matmul(a, a, bias=a[0]), InputError, "bias=.*: the plain epilogue reads c, alpha"),
    "beta": (lambda a: cutegemm.matmul(a, a, beta=2.0), InputError, "beta=2.0: needs c; nearest legal value: 0.0"),
    "weight": (
        lambda a: cutegemm.linear(a, a[None], fallback="reference"), InputError,
        r"weight.shape=\(1, 4, 4\): must have 2 dimensions \(N, K\)"),
    "missing": (lambda a: cutegemm.linear(a, a, epilogue=epi.bias()), InputError, "bias: missing"),
    "unknown": (
        lambda a: cutegemm.linear(a, a, a[0], epilogue=epi.bias(), bais=a[0]), InputError,
        "nearest legal value: 'bias'"),
    "two epilogues": (
        lambda a: cutegemm.matmul(a, a, epilogue=epi.row_max(), spec=GemmSpec(epilogue=epi.col_max())),
        SpecError, "the spec already has an epilogue"),
    "no spec": (lambda a: cutegemm.matmul(a, a, spec={}), SpecError, "must be a GemmSpec"),
    "not a batch": (lambda a: cutegemm.bmm(a, a), InputError, "must have 3 dimensions"),
    "leading dimensions": (
        lambda a: cutegemm.linear(a[None], a, epilogue=epi.residual(), residual=a), InputError,
        r"must begin with the dimensions \(1, 4\) of x"),
    "shape": (lambda a: cutegemm.matmul(a, a[:3], fallback="reference"), InputError, "b must have 4 rows"),
} | {
    f"{name}, {how}": (lambda a, call=call, how=how: call(a, how), GemmError, message)
    for how in ("torch", "reference", "emulator")
    for name, call, message in (
        ("a vector", lambda a, how: cutegemm.matmul(a[0], a, fallback=how), r"a.shape=\(4,\): must have 2 or 3 dim"),
        ("four", lambda a, how: cutegemm.matmul(a, a[None, None], fallback=how), "b.shape=.*: must have 2 or 3 dim"),
        ("c", lambda a, how: cutegemm.matmul(a, a, a[0], fallback=how), "c.shape=.*: must have 2 or 3 dim"),
        ("out's extents", lambda a, how: cutegemm.matmul(a, a, out=a[:3].clone(), fallback=how),
         r"out.shape=\(3, 4\): must be \(4, 4\)"),
        ("alpha", lambda a, how: cutegemm.matmul(a, a, alpha=a[0], fallback=how), "alpha=.*: must be a number or"),
        ("beta", lambda a, how: cutegemm.matmul(a, a, a, beta="1", fallback=how), "beta='1': must be a number"),
        ("two types", lambda a, how: linear(a, a.bfloat16(), fallback=how), "weight.dtype=.*: must be x's dtype"),
        ("fp64", lambda a, how: matmul(a.double(), a.double(), fallback=how), "a.dtype=.*: must be float16, bf"),
        ("K", lambda a, how: cutegemm.matmul(a[:, :3], a[:2, :3], fallback=how), r"must have 3 rows \(K\), as b.T has"),
        ("weight.T", lambda a, how: cutegemm.linear(a[:, :3], a[:3], fallback=how), r"be \(N, 3\), as weight.T is"),
        ("c of a row", lambda a, how: matmul(a, a, a[:1], fallback=how), r"c.shape=\(1, 4\): must be \(4, 4\)"),
        ("half a pair", lambda a, how: linear(a, a[:3], epilogue=epi.swiglu(), fallback=how),
         r"weight.shape=\(3, 4\): a gated pair needs an even number of rows"),
        ("turned rows", lambda a, how: linear(a.view(2, 2, 4), a, epilogue=epi.residual(), fallback=how,
         residual=a.view(1, 4, 4)), r"residual.shape=\(1, 4, 4\): must begin with the dimensions \(2, 2\) of x"),
        ("bias", lambda a, how: cutegemm.linear(a, a, a[0, :1], fallback=how), r"bias.shape=\(1,\): must be \(4,\)"),
        ("integers", lambda a, how: matmul(a, a, alpha=2.0, out=a.int(), fallback=how), "out.dtype=torch.int32"),
        ("a itself", lambda a, how: cutegemm.matmul(a, a.clone(), out=a, fallback=how), "out: overlaps a in memory"),
        ("a gradient", lambda a, how: cutegemm.matmul(a, a.clone().requires_grad_(), out=a.clone(), fallback=how),
         "out='...': a call with out= has no gradient"),
        ("the spec", lambda a, how: cutegemm.matmul(a, a, spec=GemmSpec(schedule="pingpong"), fallback=how),
         "schedule='pingpong': fp32 operands run on the CUDA cores"),
        ("leading dimensions of out",
         lambda a, how: linear(a, a, out=a.clone().view(2, 2, 4), fallback=how), "out.shape=.*: must begin with"),
        ("alpha, misspelt", lambda a, how: cutegemm.matmul(a, a, aplha=2.0, fallback=how), "legal value: 'alpha'"),
        ("bias, misspelt", lambda a, how: cutegemm.linear(a, a, bais=a[0], fallback=how), "legal value: 'bias'"),
        ("out", lambda a, how: cutegemm.matmul(a, a, out={"d": a.clone()}, fallback=how), "out: must be a torch"),
    )
}  # fmt: skip


def test_a_c_of_another_type_is_taken_by_every_server():
    """What kernels take, torch's functions are not asked for: C and bias may have any type."""
    a, row = r(4, 4).bfloat16(), r(4)
    for how in ("torch", "reference"):
        c = cutegemm.matmul(a, a, row.expand(4, 4).contiguous(), fallback=how)
        assert c.dtype == a.dtype and error(c, a.double() @ a.double() + row) < 1e-2
        assert torch.equal(cutegemm.linear(a, a.t(), row, fallback=how), c)


@pytest.mark.parametrize("name", REFUSED)
def test_what_breaks_a_rule_is_refused(name):
    """The error says the field and the rule."""
    call, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        call(r(4, 4))


def test_sums_in_no_order_are_refused_under_deterministic_algorithms():
    """As torch's own functions that have none: an error, or a warning where that was asked for."""
    a, spec = r(128, 128).bfloat16(), GemmSpec(split_reduction="atomic", split_k=2)
    compiled = torch.compile(
        lambda a: cutegemm.matmul(a, a, spec=spec, fallback="reference"), fullgraph=True, backend="aot_eager"
    )
    calls = (lambda a: cutegemm.linear(a, a, spec=spec, fallback="reference"), compiled)
    try:
        for call in calls:
            call(a)
            torch.use_deterministic_algorithms(True)
            with pytest.raises(Exception, match="split_reduction='atomic': adds splits in arrival order"):
                call(a)
            torch.use_deterministic_algorithms(True, warn_only=True)
            with pytest.warns(UserWarning, match="adds splits in arrival order"):
                calls[0](a)
            torch.use_deterministic_algorithms(False)
            call(a)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_call_of_a_known_kind_builds_nothing(monkeypatch):
    """Spec and epilogue are found by identity, and equal ones share what was built."""
    a, graph = r(4, 4), epi.bias_act("relu")
    cutegemm.linear(a, a, a[0], epilogue=graph, fallback="reference")
    made = []
    monkeypatch.setattr(program, "Gemm", lambda *args: made.append(args))
    with monkeypatch.context() as patch:
        patch.setattr(products, "made", lambda *args: made.append(args))
        cutegemm.linear(a, a, a[0], epilogue=graph, fallback="reference")
    cutegemm.linear(a, a, a[0], epilogue=epi.bias_act("relu"), fallback="reference")
    assert not made


def test_a_program_is_the_same_after_its_text():
    """Everything a spec and an epilogue say travels as text; what is no such text is refused."""
    spec = GemmSpec(
        tile=cutegemm.Tile(128, 64, 64), cluster=(2, 1), d_dtype="fp32", constant=("b",), raster=("m", 8)
    )
    known = program.Program(spec, many, "linear", ("scale",), "reference", final=True)
    program._programs = type(program._programs)()
    found = program.decode(known.text)
    assert found is not known and found.text == known.text
    assert vars(found).items() >= {name: getattr(known, name) for name in ("spec", "graph", "form")}.items()
    assert (found.scalars, found.backend, found.final) == (("scale",), "reference", True)
    # as programs had it that were exported before
    assert program.decode(known.text.replace("'", '"')).text == known.text
    with pytest.raises(SpecError, match="must be the text of a product"):
        program.decode("{}")


def test_a_programs_text_may_stand_in_c():
    """Inductor's cpp_wrapper writes it between double quotes as it is."""
    assert not {'"', "\\", "\n"} & set(program.Program(GemmSpec(), many, "linear", ("scale",)).text)


def test_the_package_itself_imports_no_torch():
    """`import cutegemm` loads neither torch nor the DSL; every door to the op registers it."""
    script = (
        "import sys, cutegemm\n"
        "assert not {'torch', 'cutlass'} & set(sys.modules)\n"
        "cutegemm.matmul\n"
        "import torch\n"
        "torch.ops.cutegemm.gemm.out\n"
        "assert not {'cutlass', 'torch._dynamo', 'torch.distributed.tensor'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


def test_ops_is_a_door():
    """The functions and the op's overloads."""
    assert ops.matmul is cutegemm.matmul
    assert [x._overloadname for x in ops.OVERLOADS] == ["default", "many", "out"]
