# SPDX-License-Identifier: Apache-2.0
"""`pack`: the copy of an operand that is made once, and what takes it in the operand's place."""

from __future__ import annotations

import io
import pickle

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile, pack, problem
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.gemm import build
from cutegemm.planning.planner import plan
from cutegemm.problems import operand_of
from tests.support.epilogues import assert_outputs_close
from tests.support.numerics import assert_close

BF16 = torch.bfloat16
M, N, K = 40, 71, 135
ODD = {
    "row-major": torch.randn(K, N).to(BF16),
    "column-major": torch.randn(N, K).to(BF16).t(),
    "misaligned": torch.randn(K * 128 + 1).to(BF16)[1:].view(K, 128)[:, :N],
    "no unit stride": torch.randn(K, 2 * N).to(BF16)[:, ::2],
    "a slice": torch.randn(K + 5, N + 9).to(BF16)[2 : 2 + K, 3 : 3 + N],
    "batched": torch.randn(3, K, N).to(BF16),
    "one for every batch": torch.randn(1, K, N).to(BF16).expand(3, K, N),
}
SPEC = GemmSpec(tile=Tile(64, 64, 64), swap=False)


@pytest.mark.parametrize("major", [None, "k", "n"])
@pytest.mark.parametrize("name", ODD)
def test_a_packed_weight_is_the_weight_in_lines_that_tma_reads(name, major):
    """Shape, values and type stay; lines begin at multiples of 128 bytes; one matrix for all batches stays one."""
    weight = ODD[name]
    packed = pack(weight, "b", major=major)
    assert torch.equal(packed, weight) and packed.dtype == weight.dtype
    lies = operand_of(packed)
    assert lies.tma_reason() is None and max(lies.strides[:2]) % 64 == 0 and packed.data_ptr() % 16 == 0
    if major is not None:
        assert lies.unit_row == (major == "k")
    elif name != "no unit stride":
        assert lies.unit_row == (weight.stride(-2) == 1)
    if name == "one for every batch":
        assert lies.batch == 1
    assert pack(packed, "b", major=major) is packed


@pytest.mark.sliced
@pytest.mark.parametrize("backend", ["emulator", "reference"])
@pytest.mark.parametrize("name", ["row-major", "column-major", "batched", "one for every batch"])
def test_run_takes_it_in_the_weights_place(name, backend):
    """D is the same as with the weight, bit for bit, and no run of it copies anything."""
    a = torch.randn(M, K).to(BF16)
    packed = (pack(a, "a"), pack(ODD[name], "b"))
    gemm = build(SPEC)
    d = gemm.run(*packed, backend=backend)
    assert_close(d, a, ODD[name])
    assert torch.equal(d, gemm.run(a, ODD[name], backend=backend))


def test_problem_and_plan_take_it_in_the_weights_place():
    """A problem of a packed weight needs no workspace, and is that of the call."""
    a, weight = torch.randn(M, K).to(BF16), ODD["column-major"]
    # CTAs of a cluster that share an operand have it multicast, by TMA
    loads = GemmSpec(tile=Tile(64, 64, 64), cluster=(2, 2))
    names = [
        [x.name for x in plan(loads, of).steps]
        for of in (problem(M, N, K, majors="kk"), problem(M, N, K, b=pack(weight, "b")))
    ]
    assert names == [["relayout a and b", "gemm"], ["relayout a", "gemm"]]
    both = problem(M, N, K, a=pack(a, "a"), b=operand_of(pack(weight, "b")))
    assert plan(SPEC, both).workspace_bytes == 0
    misaligned = problem(M, N, K, b=ODD["misaligned"])
    assert misaligned.b.align == 2 and misaligned.b.strides[:2] == (128, 1)


@pytest.mark.parametrize("how", ["pickle", "torch.save"])
def test_pickling_keeps_its_lines(how):
    """What comes back is equal and lies as before, so that a checkpoint may hold packed weights."""
    packed = pack(ODD["row-major"], "b")
    if how == "pickle":
        back = pickle.loads(pickle.dumps(packed))
    else:
        file = io.BytesIO()
        torch.save({"weight": packed}, file)
        file.seek(0)
        back = torch.load(file)["weight"]
    assert torch.equal(back, packed) and back.stride() == packed.stride()


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_a_gated_pair_packed_along_k_is_not_copied(layout):
    """Both halves are found by their step in lines along K, for an odd number of columns each."""
    graph = epi.swiglu(layout)
    a, weight = torch.randn(M, 136).to(BF16), torch.randn(136, 2 * N).to(BF16)
    packed = pack(weight, "b", major="k")
    spec = GemmSpec(tile=Tile(64, 64, 64), swap=False, epilogue=graph)
    of = problem(M, 2 * N, 136, epilogue=graph, b=packed)
    assert [x.name for x in plan(spec, of).steps] == ["gemm"]
    assert_outputs_close({"d": build(spec).run(a, packed, backend="emulator")}, graph, a, weight, {})


def test_a_copy_is_the_callers_own():
    """The weight may change or go: the copy does not, and a packed empty weight is that weight."""
    weight = ODD["row-major"].clone()
    packed = pack(weight, "b")
    before = packed.clone()
    weight.zero_()
    assert torch.equal(packed, before)
    empty = torch.empty(0, 5, dtype=BF16)
    assert pack(empty, "b") is empty
    negative = torch.view_as_complex(torch.randn(K, N, 2)).conj().imag
    assert negative.is_neg() and torch.equal(pack(negative, "a"), negative)


@pytest.mark.parametrize(
    "arguments,text",
    [
        ((torch.zeros(2, 3), "c"), "role='c': must be one of a, b"),
        (([1.0], "a"), "weight: must be a torch.Tensor, got list"),
        ((torch.zeros(3), "a"), "weight.shape=(3,): must have 2 or 3 dimensions (matrix, or batch of them)"),
        (
            (torch.zeros(2, 3, dtype=torch.int16), "b"),
            "weight.dtype=torch.int16: must be float16, bfloat16, float32, float8_e4m3fn, float8_e5m2, int8 or uint8",
        ),
        (
            (torch.zeros(2, 3, requires_grad=True), "b"),
            "weight.requires_grad=True: there is no backward pass; use torch.no_grad() or detach()",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(arguments, text):
    """The error names the argument, what it is and the rule."""
    with pytest.raises(InputError) as caught:
        pack(*arguments)
    assert str(caught.value) == text


def test_majors_and_problems_that_do_not_fit_are_refused():
    """A role has two majors; a problem's operand has the problem's extents and type."""
    weight = torch.zeros(K, N, dtype=BF16)
    with pytest.raises(InputError, match="major='m': must be one of k, n"):
        pack(weight, "b", major="m")
    for fields, text in (
        ({"b": weight.t()}, r"b.shape=\(71, 135\): the problem's is \(135, 71\)"),
        ({"b": weight, "dtype": "fp16"}, "b.dtype='bf16': the problem's is fp16"),
        ({"b": weight.expand(2, K, N).clone(), "batch": 3}, "b.batch=2: must be 1 or 3"),
        ({"a": 3}, "a=3: must be a strided torch.Tensor or an Operand"),
        ({"a": weight[0]}, r"a.shape=\(71,\): must have 2 or 3 dimensions"),
    ):
        with pytest.raises(InputError, match=text):
            cutegemm.problem(M, N, K, **fields)
