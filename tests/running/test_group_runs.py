# SPDX-License-Identifier: Apache-2.0
"""`Gemm.run(..., groups=Groups(...))`: the groups of `grouped_mm` under a spec that was built."""

import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec, Groups
from cutegemm import epilogue as epi
from cutegemm.errors import InputError, PlanError
from tests.support.groups import SMALL, drawn
from tests.support.numerics import assert_close

ENDS = torch.tensor([1, 130, 130, 200])
SPEC = GemmSpec(**SMALL)
FORMS = {
    "rows": (drawn(200, 96), drawn(4, 96, 136), {"offs": ENDS}),
    "along K": (drawn(200, 72).T, drawn(200, 136), {"cu_seqlens": ENDS}),
    "columns": (drawn(4, 72, 96), drawn(96, 200), {"offs": ENDS}),
    "masked": (drawn(4, 40, 96), drawn(4, 96, 136), {"counts": torch.tensor([40, 0, 7, 99])}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_c", [False, True])
def test_a_run_of_groups_is_a_grouped_mm(form, with_c):
    """The same bits, by the reference, of every form, with and without C; each kind of call is prepared once."""
    a, b, told = FORMS[form]
    gemm, plain = Gemm(SPEC), cutegemm.grouped_mm(a, b, **told, fallback="reference")
    c = torch.ones_like(plain) if with_c else None
    beta = 0.5 if with_c else None
    for _ in range(2):
        found = gemm.run(a, b, c, alpha=2.0, beta=beta, groups=Groups(**told))
        wanted = cutegemm.grouped_mm(a, b, **told, c=c, alpha=2.0, beta=beta, fallback="reference")
        assert torch.equal(found, wanted)
    assert [len(x._kinds) for x in gemm._grouped.values()] == [1]


def test_a_kernel_serves_the_run():
    """The spec's own kernel, on the emulator, and into `out`, whose rows of no group stay."""
    a, b, _ = FORMS["rows"]
    out = torch.full((200, 136), 7.0).bfloat16()
    before = out._version
    groups = Groups(offs=torch.tensor([1, 130, 130, 180]), tail="undefined")
    assert Gemm(SPEC).run(a, b, out=out, groups=groups, backend="emulator") is out
    # autograd notices the write
    assert out._version > before
    assert_close(out[1:130], a[1:130], b[1])
    assert torch.all(out[180:] == 7.0)


@pytest.mark.parametrize("form", ["rows", "masked"])
def test_the_reference_zeroes_rows_of_no_group(form):
    """Also where a group has no rows, and the given output held something else."""
    a, b, told = FORMS[form]
    told = {"offs": told["offs"] - 20} if form == "rows" else told
    out = torch.full((*a.shape[:-1], 136), 7.0).bfloat16()
    Gemm(SPEC).run(a, b, out=out, groups=Groups(**told))
    left = [out[180:]] if form == "rows" else [x[max(0, n) :] for x, n in zip(out, told["counts"].tolist())]
    assert all(torch.all(x == 0) for x in left) and sum(x.shape[0] for x in left) > 0


@pytest.mark.parametrize("backend", ["reference", "emulator"])
def test_rows_that_indices_name_are_gathered(backend):
    """Without a word about loads in the spec; one outside is zeros."""
    a, b, _ = FORMS["rows"]
    rows = torch.tensor([5, 5, 199, -1, 200, 0], dtype=torch.int32)
    groups = Groups(offs=torch.tensor([2, 2, 6, 6]), rows=rows)
    found = Gemm(SPEC).run(a, b, groups=groups, backend=backend)
    assert_close(found[[0, 1]], a[[5, 5]], b[0])
    assert_close(found[[2, 5]], a[[199, 0]], b[2])
    assert torch.all(found[3:5] == 0)


def test_the_epilogue_of_the_spec_has_a_row_for_each_group():
    """And alpha of its own."""

    @epi.define
    def scaled(acc, *, bias: epi.Row, alpha: epi.Scalar):
        return alpha * acc + bias

    a, b, told = FORMS["rows"]
    bias = torch.arange(4.0)[:, None].expand(4, 136).contiguous()
    found = Gemm(GemmSpec(epilogue=scaled)).run(a, b, alpha=0.5, bias=bias, groups=Groups(**told))
    torch.testing.assert_close(
        found[130:], (0.5 * a[130:].float() @ b[3].float() + 3.0).bfloat16(), rtol=1e-2, atol=1e-2
    )


def test_a_view_with_the_other_sign_is_read_so():
    """A kernel reads memory, where such a view's elements have the opposite sign."""
    a, b, told = FORMS["rows"]
    whole = torch.complex(torch.zeros(200, 96), a.float()).conj().imag
    assert whole.is_neg()
    gemm = Gemm(GemmSpec(math="tf32"))
    found = gemm.run(whole, b.float(), groups=Groups(**told), backend="emulator")
    assert_close(found[130:], -a[130:].float(), b[3].float())
    assert not any(len(x._kinds) for x in gemm._grouped.values())


def test_one_kind_of_ends_tells_the_groups():
    """None, or two, or another tail, are refused where groups are declared."""
    with pytest.raises(InputError, match=r"offs=None: groups need offs"):
        Groups(rows=ENDS)
    with pytest.raises(InputError, match="must not be given with offs"):
        Groups(offs=ENDS, counts=ENDS)
    with pytest.raises(InputError, match="tail='ones': must be one of zero, undefined"):
        Groups(offs=ENDS, tail="ones")


A, B = torch.zeros(64, 64).bfloat16(), torch.zeros(2, 64, 64).bfloat16()
OFFS = Groups(offs=torch.tensor([7, 64]))
REFUSED = {
    "no Groups": ({"groups": ENDS}, "groups=.*must be cutegemm.Groups"),
    "another library's array": ({"a": A.float().numpy()}, "a: must be a torch.Tensor"),
    "operands of one product": ({"b": B[:, None]}, r"b\.dim\(\)"),
    "counts of a matrix": (
        {"groups": Groups(counts=torch.zeros(2).int())},
        r"counts=\(2,\): groups .* need offs",
    ),
    "offsets of batches": ({"a": B}, r"offs=\(2,\): one batch of a per group needs counts"),
    "fp32 on the CUDA cores": (
        {"a": A.float(), "b": B.float()},
        "math='auto': groups are multiplied by tensor cores, which take fp32 operands as tf32; .*'tf32'",
    ),
    "D over A": ({"out": A}, "overlaps a"),
    "beta without C": ({"beta": 2.0}, "needs c"),
    "what nothing reads": ({"bias": A[0]}, "bias"),
    "a gradient": ({"a": A.clone().requires_grad_()}, "requires_grad"),
    "too few ends": ({"groups": Groups(offs=torch.zeros(1).int())}, r"offs\.shape.*must be \(2,\)"),
    "another backend": ({"backend": "cuda"}, "backend='cuda': must be one of"),
    "indices by TMA": ({"groups": Groups(offs=ENDS[:2], rows=ENDS)}, "a_load='tma'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be(name):
    """Refused before anything is written."""
    given, message = REFUSED[name]
    with pytest.raises((InputError, PlanError), match=message):
        Gemm(GemmSpec(a_load="tma")).run(**{"a": A, "b": B, "groups": OFFS, "backend": "emulator"} | given)


def test_the_spec_says_what_d_is():
    """A D that is given has the spec's type and major, as in any run."""
    gemm = Gemm(GemmSpec(d_dtype="fp32", d_major="n"))
    with pytest.raises(PlanError, match="d_dtype='fp32': the problem's D is bf16"):
        gemm.run(A, B, out=A.clone(), groups=OFFS)
    with pytest.raises(PlanError, match="d_major='n': the problem's D has strides"):
        gemm.run(A, B, out=A.clone().float().T, groups=OFFS)
    assert gemm.run(A, B, groups=OFFS).dtype == torch.float32


@pytest.mark.parametrize("backend", ["reference", "emulator"])
@pytest.mark.parametrize(
    ("spec", "form", "message"),
    [
        (GemmSpec(scheduler="stream_k"), "rows", "scheduler='stream_k': groups take persistent kernels without splits"),
        (GemmSpec(constant=("b",)), "rows", "constant=.*where operands are loaded is known when earlier"),
        (GemmSpec(constant=("b",)), "along K", "constant=.*where operands are loaded is known when earlier"),
        (GemmSpec(input_stages=2), "rows", "input_stages=2: threads read .* nearest legal value: 1"),
        (GemmSpec(schedule="simt"), "rows", "^schedule='simt': groups are .* cores; nearest legal value: 'auto'"),
        (GemmSpec(cluster=(1, 1, 2)), "rows", r"^cluster=\(1, 1, 2\): groups .*splits; nearest legal value: \(1, 1\)"),
        (GemmSpec(math="tf32x3"), "rows", "math='tf32x3': .*not copied before .*; nearest legal value: 'tf32'"),
    ],
)  # fmt: skip
def test_fields_that_groups_do_not_have_are_refused(spec, form, message, backend):
    """constant and input_stages were dropped without a word; the reference refuses what a GPU would."""
    a, b, told = FORMS[form]
    if spec.math != "auto":
        a, b = a.float(), b.float()
    with pytest.raises(PlanError, match=message):
        Gemm(spec).run(a, b, groups=Groups(**told), backend=backend)


def test_scales_of_the_spec_are_read():
    """A has a scale for each row, and B one for each column of each group."""
    a, b, told = FORMS["rows"]
    a, b = a.to(torch.float8_e4m3fn), b.mT.contiguous().to(torch.float8_e4m3fn).mT
    scales = {"scale_a": torch.rand(200), "scale_b": torch.rand(4, 136)}
    found = Gemm(GemmSpec(scale_a="row", scale_b="row")).run(a, b, **scales, groups=Groups(**told))
    assert torch.equal(found, cutegemm.grouped_mm(a, b, **told, **scales, fallback="reference"))


def test_zero_points_and_artefacts_have_no_groups(tmp_path):
    """Named, each."""
    with pytest.raises(InputError, match="zero_point_b='row': groups have no zero points"):
        Gemm(GemmSpec(a_dtype="int8", b_dtype="int8", zero_point_b="row")).run(A, B, groups=OFFS)
    with pytest.raises(InputError, match="groups: an artefact holds GEMMs of fixed extents"):
        cutegemm.load(Gemm(SPEC).save(tmp_path / "one.cutegemm")).run(A, B, groups=OFFS)


def test_indices_outside_are_named_where_calls_are_checked(monkeypatch):
    """On every call, not only a kind's first."""
    a, b, _ = FORMS["rows"]
    rows = torch.zeros(6, dtype=torch.int32)
    groups, gemm = Groups(offs=torch.tensor([2, 2, 6, 6]), rows=rows), Gemm(GemmSpec())
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    gemm.run(a, b, groups=groups)
    rows[4] = 200
    with pytest.raises(InputError, match=r"rows\[4\]=200: must be in \[0, 200\)"):
        gemm.run(a, b, groups=groups)
