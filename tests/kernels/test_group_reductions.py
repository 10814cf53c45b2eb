# SPDX-License-Identifier: Apache-2.0
"""Reductions of each row of groups' D, beside what is stored: on the emulator, races on, beside fp64."""

import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, emulator
from cutegemm import Groups as Told
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from tests.support.groups import ENDS, SMALL, SWAPPED, drawn
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced


@epi.define
def rows(acc, *, bias: epi.Row):
    """D, and of each of its rows the maximum, the sum of squares and the logarithm of the sum of exponentials."""
    h = acc + bias
    return epi.Output(
        d=h, top=epi.Max(h, axis=1), energy=epi.Sum(h * h, axis=1), lse=epi.LogSumExp(h, axis=1)
    )


@epi.define
def columns(acc):
    """Reduces each column of D, and does not store D."""
    return epi.Output(top=epi.Max(acc, axis=0), total=epi.Sum(acc, axis=0))


@epi.define(gated="halves")
def gated(gate, up):
    """A gated pair and the largest of each row, as quantisers need it."""
    h = epi.silu(gate) * up
    return epi.Output(d=h, amax=epi.AbsMax(h, axis=-1))


def reduced(h):
    """What `rows` reduces, in fp64."""
    return {"top": h.amax(-1), "energy": h.square().sum(-1), "lse": h.logsumexp(-1)}


class Call:
    """What `emulator.run` runs: a call under a spec, into given outputs."""

    def __init__(self, **named):
        self.named = named

    def run(self, a, b, backend):
        """One call."""
        return cutegemm.grouped_mm(a, b, **self.named, fallback=backend)


def emulated(a, b, **named):
    """Its outputs, of a run without findings."""
    run = emulator.run(Call(**named), a, b, options=RACES)
    assert not run.findings
    return run.d


KERNELS = {
    "cooperative": SMALL,
    "in turns": {**SMALL, "schedule": "pingpong"},
    "multistage": {**SMALL, "schedule": "multistage"},
    "tokens along columns": SWAPPED,
    "pairs share A": {**SMALL, "tile": Tile(128, 64, 64), "sms": 4, "cluster": (1, 2), "consumers": 2},
}


@pytest.mark.parametrize("tail", ["zero", "undefined"])
@pytest.mark.parametrize("ends", ["uneven", "a tail", "decreasing and outside"])
@pytest.mark.parametrize("name", KERNELS)
def test_each_row_of_a_group_is_reduced(name, ends, tail):
    """Over all tiles of its columns, the last of which is not whole; rows of no group are reduced to 0."""
    told = torch.tensor(ENDS[ends])
    a, b, bias = drawn(200, 96), drawn(len(told), 96, 200), drawn(len(told), 200).float()
    given = {"offs": told, "epilogue": rows, "bias": bias, "spec": GemmSpec(**KERNELS[name]), "tail": tail}
    found = emulated(a, b, **given)
    begin, mine = 0, torch.zeros(200, dtype=torch.bool)
    for group, end in enumerate(told.clamp(0, 200).cummax(0).values.tolist()):
        h = a[begin:end].double() @ b[group].double() + bias[group].double()
        for output, wanted in reduced(h).items() if end > begin else ():
            torch.testing.assert_close(
                getattr(found, output)[begin:end].double(), wanted, rtol=1e-4, atol=1e-3
            )
        mine[begin:end] = True
        begin = end
    for output in ("top", "energy", "lse"):
        assert torch.all(getattr(found, output)[~mine] == 0)
    if tail == "zero":
        assert torch.all(found.d[~mine] == 0)


@pytest.mark.parametrize("name", ["cooperative", "tokens along columns"])
def test_rows_of_masked_groups_and_of_gated_pairs(name):
    """Counts outside a batch count as none or all."""
    a, b, counts = drawn(4, 70, 96), drawn(4, 96, 272), torch.tensor([70, 0, -3, 33])
    found = emulated(a, b, counts=counts, epilogue=gated, spec=GemmSpec(sms=3, swap=name != "cooperative"))
    told = cutegemm.grouped_mm(a, b, counts=counts, epilogue=gated, fallback="reference")
    for x, y in ((found.d, told.d), (found.amax, told.amax)):
        torch.testing.assert_close(x.float(), y.float(), rtol=1e-2, atol=1e-2)
    assert (
        found.amax.shape == (4, 70) and torch.all(found.amax[1:3] == 0) and torch.all(found.amax[3, 33:] == 0)
    )


@pytest.mark.parametrize("swap", [False, True])
def test_columns_of_groups_are_reduced(swap):
    """Each column of a group of columns has its reductions, without D; columns of no group are reduced to 0."""
    ends = torch.tensor([1, 130, 130, 180])
    a, b = drawn(4, 136, 96), drawn(200, 96).T
    spec = GemmSpec(sms=3, swap=swap, tile=Tile(64, 64, 64), cluster=(1, 1))
    found = emulated(a, b, offs=ends, epilogue=columns, spec=spec)
    plain = torch.cat(
        [
            a[i].double() @ b[:, x:y].double()
            for i, (x, y) in enumerate(((0, 1), (1, 130), (130, 130), (130, 180)))
        ],
        1,
    )
    torch.testing.assert_close(found.top[:180].double(), plain.amax(0), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.total[:180].double(), plain.sum(0), rtol=1e-4, atol=1e-3)
    assert torch.all(found.top[180:] == 0) and torch.all(found.total[180:] == 0)


def test_rows_of_groups_along_k():
    """Each group has a D of its own; that of an empty one is what the epilogue makes of 0."""
    a, b, ends = drawn(200, 72).T, drawn(200, 136), torch.tensor([1, 130, 130, 200])
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=3, store="tma", epilogue_stages=1)
    found = emulated(a, b, offs=ends, epilogue=rows, bias=torch.ones(136), spec=spec, out_dtype=torch.float32)
    plain = torch.stack(
        [a[:, x:y].double() @ b[x:y].double() for x, y in ((0, 1), (1, 130), (130, 130), (130, 200))]
    )
    torch.testing.assert_close(found.d.double(), plain + 1, rtol=1e-4, atol=1e-3)
    for output, wanted in reduced(plain + 1).items():
        torch.testing.assert_close(getattr(found, output).double(), wanted, rtol=1e-4, atol=1e-3)


def test_what_is_given_and_built_is_reduced_into():
    """Outputs by name, a workspace that is stated, and the same bits on each run of a spec that was built."""
    ends, bias = torch.tensor(ENDS["uneven"]), drawn(4, 200).float()
    a, b = drawn(200, 96), drawn(4, 96, 200)
    gemm, outs = Gemm(GemmSpec(**SMALL, epilogue=rows)), {"top": torch.full((200,), 7.0)}
    first = gemm.run(a, b, bias=bias, groups=Told(offs=ends), out=outs, backend="emulator")
    again = gemm.run(a, b, bias=bias, groups=Told(offs=ends), backend="emulator")
    assert first.top is outs["top"]
    assert all(torch.equal(getattr(first, x), getattr(again, x)) for x in ("d", "top", "energy", "lse"))


def test_gradients_go_through_sums_of_rows():
    """With autograd and compiled; maxima have none, rows of no group neither."""
    ends = torch.tensor([7, 7, 41])

    def loss(a, b, bias):
        found = cutegemm.grouped_mm(a, b, ends, epilogue=rows, bias=bias, fallback="reference")
        assert not found.top.requires_grad
        return (found.energy * torch.arange(50)).sum()

    tensors = [drawn(50, 24), drawn(3, 24, 40), drawn(3, 40).float()]
    ours, wide = (
        [x.to(kind).requires_grad_() for x, kind in zip(tensors, kinds)]
        for kinds in (
            (torch.bfloat16, torch.bfloat16, torch.float32),
            (torch.float64,) * 3,
        )
    )
    h = torch.cat([wide[0][:7] @ wide[1][0] + wide[2][0], wide[0][7:41] @ wide[1][2] + wide[2][2]])
    told = torch.autograd.grad((h.square().sum(-1) * torch.arange(41)).sum(), wide)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for f in (loss, compiled):
        for x, y in zip(torch.autograd.grad(f(*ours), ours), told, strict=True):
            assert (x.double() - y).norm() <= 0.02 * y.norm()


def test_outputs_are_described_in_their_order():
    """The outputs of fake tensors have the epilogue's order, shapes and types, for every form of groups."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mixed = epi.define(lambda acc: epi.Output(top=epi.Max(acc, axis=1), d=acc, total=epi.Sum(acc, axis=1)))
    with FakeTensorMode():
        a, b, ends = torch.empty(7, 24).bfloat16(), torch.empty(3, 24, 40).bfloat16(), torch.zeros(3).int()
        found = cutegemm.grouped_mm(a, b, ends, epilogue=mixed, fallback="reference")
        assert (found.d.shape, found.top.shape, found.total.dtype) == ((7, 40), (7,), torch.float32)
        found = cutegemm.grouped_mm(a.T, a, ends, epilogue=mixed, fallback="reference")
        assert (found.d.shape, found.top.shape) == ((3, 24, 24), (3, 24))
        found = cutegemm.grouped_mm(b, a.T.new_empty(40, 9), ends, epilogue=columns, fallback="reference")
        assert (found.top.shape, found.total.shape) == ((9,), (9,))


A, B, OFFS = drawn(8, 16), drawn(2, 16, 8), torch.tensor([3, 8])
REFUSED = {
    "columns of groups of rows": (
        {"epilogue": epi.define(lambda acc: epi.Output(d=acc, top=epi.Max(acc, axis=0)))},
        r"epilogue\.top\.axis=0: groups of rows or along K reduce each row of D.*nearest legal value: 1",
    ),
    "all of D": (
        {"epilogue": epi.define(lambda acc: epi.Output(d=acc, total=epi.Sum(acc)))},
        r"epilogue\.total\.axis=None: groups of rows or along K reduce each row",
    ),
    "rows of groups of columns": (
        {"epilogue": epi.row_max(), "a": B.mT, "b": A.T},
        r"epilogue\.row_max\.axis=1: groups of columns reduce each column of D",
    ),
    "scales of blocks of D": (
        {"epilogue": epi.define(lambda acc: epi.Output(d=acc, scale=epi.quantize(acc).scale))},
        r"epilogue\.scale=\('block', 1, 128\): groups cannot store quantized blocks; store D and call",
    ),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be(name, recorded):
    """A reduction over what groups end in, with a gradient too."""
    given, message = REFUSED[name]
    given = {"a": A, "b": B, "offs": OFFS, **given}
    given["a"] = given["a"].clone().requires_grad_(recorded)
    with pytest.raises(InputError, match=message):
        cutegemm.grouped_mm(**given, fallback="reference")


def test_partial_results_are_finished():
    """By grouped_mm; a run of a spec that was built refuses them by name."""

    @epi.define
    def parts(acc):
        return epi.Output(d=acc, total=epi.Sum(acc, axis=1, partial=True))

    told = cutegemm.grouped_mm(A, B, OFFS, epilogue=parts, fallback="reference")
    torch.testing.assert_close(told.total, told.d.float().sum(1), rtol=2e-2, atol=0.1)
    with pytest.raises(
        InputError, match=r"epilogue\.total\.partial=True: groups support finished reductions only"
    ):
        Gemm(GemmSpec(epilogue=parts)).run(A, B, groups=Told(offs=OFFS))


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [1, 8, 128])
@pytest.mark.parametrize("shape", [(16, 72, 64), (1000, 1536, 2048)])
def test_rows_of_groups_are_reduced_on_the_gpu(shape, groups):
    """Maxima, sums and logarithms of sums of exponentials of every row, also when a graph is replayed."""
    m, n, k = shape
    draw = torch.Generator("cuda").manual_seed(m + groups)
    a = torch.randn(m, k, generator=draw, device="cuda").bfloat16() * 0.1
    b = torch.randn(groups, n, k, generator=draw, device="cuda").bfloat16().mT
    bias, ends = torch.zeros(n, device="cuda"), torch.zeros(groups, dtype=torch.int32, device="cuda")
    call = lambda: cutegemm.grouped_mm(a, b, ends, epilogue=rows, bias=bias, fallback="error")
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    for _ in range(3):
        cuts = torch.randint(0, m + 1, (groups,), generator=draw, device="cuda").sort().values
        ends.copy_(cuts)
        graph.replay()
        begin = 0
        for group, end in enumerate(cuts.tolist()):
            for output, wanted in (
                reduced(a[begin:end].double() @ b[group].double()).items() if end > begin else ()
            ):
                torch.testing.assert_close(
                    getattr(found, output)[begin:end].double(), wanted, rtol=1e-3, atol=1e-2
                )
            begin = end
        assert torch.all(found.top[begin:] == 0) and torch.all(found.lse[begin:] == 0)
