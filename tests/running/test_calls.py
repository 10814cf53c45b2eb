# SPDX-License-Identifier: Apache-2.0
"""Sequences of calls on one Gemm: each is checked as the first was, whatever came before it."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cutegemm
from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.errors import CheckError, GemmError, InputError, SpecError
from cutegemm.gemm import Gemm, representative
from cutegemm.running import run
from cutegemm.running.arguments.call import Memo
from cutegemm.running.backends import launcher
from cutegemm.running.numerics import reference
from tests.support.numerics import assert_close

BF16 = torch.bfloat16


def gemm_of(**fields) -> Gemm:
    """A Gemm of which nothing is compiled."""
    spec = GemmSpec(**fields)
    return Gemm(spec, representative(spec))


@epi.define
def scaled(acc, *, bias: epi.Row, scale: epi.Scalar):
    """A row and a scalar."""
    return acc * scale + bias


A, B, C = torch.randn(6, 5), torch.randn(5, 7), torch.randn(6, 7)
LATER = {
    "beta without c": ({"beta": 1.0}, "beta=1.0: needs c; nearest legal value: 0.0"),
    "beta that is nan without c": ({"beta": math.nan}, "beta=nan: needs c; nearest legal value: 0.0"),
    "alpha as text": (
        {"alpha": "2"},
        "alpha='2': must be a number; an epilogue of your own may take 0-d tensors",
    ),
    "beta as text": (
        {"c": C, "beta": "2"},
        "beta='2': must be a number; an epilogue of your own may take 0-d tensors",
    ),
    "alpha as tensor": (
        {"alpha": torch.tensor(2.0)},
        "alpha=tensor(2.): must be a number; an epilogue of your own",
    ),
    "alpha on another device": ({"alpha": torch.tensor(2.0, device="meta")}, "alpha="),
    "alpha beyond any float": ({"alpha": 10**400}, "alpha="),
    "out elsewhere": (
        {"out": torch.empty(6, 7, device="meta")},
        "out.device='meta': must be a's device, cpu",
    ),
    "c elsewhere": ({"c": C.to("meta")}, "c.device='meta': must be a's device, cpu"),
    "an unhashable backend": ({"backend": []}, "backend=[]: must be one of gpu, reference, emulator"),
    "another backend": ({"backend": "gpu"}, "backend='gpu': the tensors are on cpu"),
    "workspace as text": ({"workspace": "x"}, "workspace='x': must be a uint8 tensor of 0 bytes on cpu"),
    "workspace elsewhere": (
        {"workspace": torch.empty(8, device="meta")},
        "workspace='32 bytes on meta': must be",
    ),
    "a name that is not read": ({"bias": C[0]}, "bias='...': the plain epilogue reads c, alpha and beta"),
    "unread c of another shape": ({"c": C.t(), "beta": 0.0}, "c.shape=(7, 6): must be (6, 7)"),
    "unread c that is no tensor": ({"c": 3.0, "beta": 0.0}, "c: must be a torch.Tensor, got float"),
}


@pytest.mark.parametrize("name", LATER)
def test_a_later_call_is_checked_like_a_first(name):
    """After legal calls of the same kinds, and alone, a bad argument gets the same refusal."""
    changed, message = LATER[name]
    known = gemm_of()
    known.run(A, B)
    known.run(A, B, C)
    known.run(A, B, C, beta=0.0)
    for gemm in (known, gemm_of()):
        with pytest.raises(InputError) as e:
            gemm.run(A, B, **changed)
        assert str(e.value).startswith(message)
    assert_close(known.run(A, B, C, beta=2.0), A, B, C, 1.0, 2.0)


def test_scalars_are_any_real_number():
    """NumPy's, integers and truth values too; they do not change the kind of a call."""
    gemm = gemm_of()
    for alpha, beta in ((2, np.float32(0.5)), (True, 1), (np.int64(-1), np.float64(2.0)), (0.5, 0)):
        assert_close(gemm.run(A, B, C, alpha=alpha, beta=beta), A, B, C, float(alpha), float(beta))


def test_an_unread_c_is_no_out():
    """Calls whose tensors agree but play other roles are of different kinds."""
    gemm, d = gemm_of(), torch.empty(6, 7)
    gemm.run(A, B, C, out=d)
    d.fill_(math.nan)
    assert gemm.run(A, B, d, out=C.clone(), beta=0.0).isfinite().all()
    assert_close(gemm.run(A, B, C, out=d), A, B, C, 1.0, 1.0)


@pytest.mark.parametrize("graph", [None, scaled], ids=["plain", "fused"])
@pytest.mark.parametrize("backend", [None, "emulator"])
def test_meta_tensors_are_another_kind(graph, backend):
    """A call on meta tensors gives a meta tensor, and the same call on CPU tensors afterwards its values."""
    gemm = gemm_of(tile=Tile(64, 64, 64), **({} if graph is None else {"epilogue": graph}))
    a, b, bias = torch.randn(6, 8, dtype=BF16), torch.randn(8, 8, dtype=BF16), torch.randn(8)
    inputs = {} if graph is None else {"bias": bias, "scale": 2.0}
    meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    for _ in range(2):
        got = gemm.run(a.to("meta"), b.to("meta"), **meta, backend=backend)
        assert got.is_meta and got.shape == (6, 8) and got.dtype == BF16
        got = gemm.run(a, b, **inputs, backend=backend)
        assert not got.is_meta
        expected = a.float() @ b.float() if graph is None else a.float() @ b.float() * 2 + bias
        torch.testing.assert_close(got.float(), expected, atol=0.05, rtol=0.01)


def test_empty_tensors_of_other_devices_are_another_kind():
    """Neither an empty CPU tensor nor an empty meta tensor has an address."""
    gemm = gemm_of()
    for device in ("cpu", "meta", "cpu"):
        got = gemm.run(torch.empty(0, 5, device=device), torch.empty(5, 7, device=device))
        assert got.device.type == device and got.shape == (0, 7)


def test_fake_tensors_are_described():
    """Under a fake mode, tensors of a device that is not there are described and planned; nothing is launched."""
    gemm = gemm_of(
        epilogue=epi.define(
            lambda acc: epi.Output(d=acc, amax=epi.Max(acc), pre=epi.Store(acc, dtype="fp32"))
        )
    )
    with FakeTensorMode():
        a, b = (torch.empty(3, 64, 64, dtype=BF16, device="cuda") for _ in range(2))
        for _ in range(2):
            got = gemm.run(a, b)
        assert got.d.device.type == "cuda" and got.d.shape == (3, 64, 64) and got.d.dtype == BF16
        assert got.amax.shape == (3,) and got.pre.dtype == torch.float32
        with pytest.raises(InputError, match=r"^b.shape=\(3, 64, 64\): a is \(64, 63\)"):
            gemm.run(torch.empty(64, 63, dtype=BF16, device="cuda"), b)
    assert gemm.run(torch.ones(4, 4), torch.ones(4, 4)).d.sum() == 64


@pytest.mark.filterwarnings("error")
def test_fake_tensors_are_not_asked_for_memory():
    """They have none, and warn when they are asked: neither a plain nor a fused call does."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with FakeTensorMode():
            a, row = torch.empty(8, 8), torch.empty(8)
            for call in (
                lambda: gemm_of().run(a, a, a),
                lambda: gemm_of(epilogue=epi.bias()).run(a, a, bias=row),
            ):
                assert call().shape == (8, 8)
    finally:
        torch.set_warn_always(always)


@pytest.mark.parametrize("backend", [None, "emulator"])
def test_negated_views_are_read_with_their_sign(backend):
    """`z.conj().imag` is a view whose memory holds the other sign; an out that is one is refused."""
    gemm = gemm_of(schedule="simt")
    z = torch.randn(8, 8, dtype=torch.complex64)
    plain, negated = z.imag, z.conj().imag
    for _ in range(2):
        assert_close(gemm.run(plain, plain, backend=backend), plain, plain)
        assert_close(gemm.run(negated, plain, backend=backend), -plain, plain)
        assert_close(gemm.run(plain, plain, negated, backend=backend), plain, plain, -plain, 1.0, 1.0)
    with pytest.raises(InputError, match=r"^b"):
        gemm.run(negated, [[1.0]], backend=backend)
    for out in (negated, torch._neg_view(torch.zeros(8, 8))):
        gemm.run(plain, plain, out=torch.empty(8, 8))
        with pytest.raises(InputError, match=r"^out.is_neg\(\)=True: must not be a negated view"):
            gemm.run(plain, plain, out=out, backend=backend)


def test_a_memory_of_kinds_is_bounded_and_keeps_what_is_used():
    """However many kinds of calls come, so many are remembered, the recently used ones among them."""
    memo = Memo(half=4)
    for i in range(100):
        memo.put(i, str(i))
        assert memo.get(0) == "0" and len(memo) <= 8
    assert memo.get(99) == "99" and memo.get(50) is None and set(memo.values()) >= {"0", "99"}


def test_a_gemm_forgets_kinds_of_calls(monkeypatch):
    """A thousand different M leave a bounded memory, and a kind in use is prepared once."""
    gemm, prepared, original = gemm_of(), [], run.prepare
    gemm._kinds = Memo(half=8)
    monkeypatch.setattr(run, "prepare", lambda *call: prepared.append(call) or original(*call))
    for m in range(1, 40):
        gemm.run(torch.ones(m, 2), torch.ones(2, 2))
        gemm.run(torch.ones(100, 2), torch.ones(2, 2))
        assert len(gemm._kinds) <= 16
    assert len(prepared) == 40


def test_a_workspace_may_not_lie_over_a_tensor():
    """Copies would overwrite what is read, or what is written."""
    gemm = gemm_of(a_load="relayout", tile=Tile(64, 64, 64))
    memory = torch.zeros(1 << 16, dtype=torch.uint8)
    a, b = memory[: 64 * 63 * 2].view(BF16).view(64, 63), torch.zeros(63, 64, dtype=BF16)
    need = gemm.workspace_bytes(problem(64, 64, 63))
    assert need > 0
    with pytest.raises(InputError, match="^workspace: overlaps a in memory$"):
        gemm.run(a, b, backend="emulator", workspace=memory[4096:])
    with pytest.raises(
        InputError, match=f"^workspace='{need - 1} bytes on cpu': must be {need} contiguous bytes"
    ):
        gemm.run(a, b, backend="emulator", workspace=memory[-need + 1 :])
    assert_close(gemm.run(a, b, backend="emulator", workspace=memory[-need - 16 :][:need]), a, b)


def test_an_error_knows_its_call():
    """Its context names the spec and the tensors of the call."""
    with pytest.raises(InputError) as e:
        gemm_of(stages=2).run(A, B, out=C.t())
    assert e.value.context == {
        "spec": "GemmSpec(stages=2)",
        "a": "<Tensor (6, 5) torch.float32>",
        "b": "<Tensor (5, 7) torch.float32>",
        "d": "<Tensor (7, 6) torch.float32>",
    }


def test_a_gemm_can_be_copied_and_pickled():
    """So can a module that holds one; the copy has the spec, the plan and the results."""
    for gemm in (gemm_of(d_dtype="fp32"), gemm_of(epilogue=scaled), Gemm(GemmSpec(), problem(64, 64, 64))):
        gemm.run(A, B, **({"bias": C[0], "scale": 2.0} if gemm.spec.epilogue is scaled else {}))
        module = torch.nn.Linear(2, 2)
        module.gemm = gemm
        for other in (copy.deepcopy(gemm), pickle.loads(pickle.dumps(gemm)), copy.deepcopy(module).gemm):
            assert other is not gemm and other.spec == gemm.spec and other.plan == gemm.plan


def test_the_repr_is_what_builds_it():
    """`repr` is the call of `build`, with the problem where one was given."""
    assert repr(gemm_of(stages=2)) == "build(GemmSpec(stages=2))"
    of = problem(64, 64, 64)
    assert repr(Gemm(GemmSpec(), of)) == f"build(GemmSpec(), {of!r})"


def test_torch_compile_leaves_a_run_to_python():
    """The graph breaks at the call, before and after the first one, and nothing of it is traced; results are those of
    eager code; where no break is allowed, the reason is named.
    """
    traced: list[str] = []

    def recorded(module, example_inputs):
        traced.extend(
            getattr(x.target, "__name__", str(x.target))
            for x in module.graph.nodes
            if x.op.startswith("call")
        )
        return module

    for graph in (None, scaled):
        gemm = gemm_of(**({} if graph is None else {"epilogue": graph}))
        inputs = {} if graph is None else {"bias": C[0], "scale": 2.0}
        compiled = torch.compile(lambda x, y, g=gemm, i=inputs: g.run(x * 2, y, **i) + 1, backend=recorded)
        for x in (A, A[:3], A):
            torch.testing.assert_close(compiled(x, B), gemm.run(x * 2, B, **inputs) + 1)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="cutegemm launches its kernels itself"):
            torch.compile(lambda x, g=gemm: g.run(x, B), backend="eager", fullgraph=True)(A)
        torch._dynamo.reset()
    assert set(traced) == {"mul", "add"}


NO_SPEC = "must be a GemmSpec; nearest legal value: GemmSpec()"
CALL_IT = "must be a GemmSpec: call it; nearest legal value: GemmSpec()"
WRONG = {
    "build(None)": (lambda g: cutegemm.build(None), SpecError, f"spec=None: {NO_SPEC}"),
    "build({})": (lambda g: cutegemm.build({}), SpecError, f"spec={{}}: {NO_SPEC}"),
    "build(GemmSpec)": (lambda g: cutegemm.build(GemmSpec), SpecError, f"spec={GemmSpec}: {CALL_IT}"),
    "build a shape": (lambda g: cutegemm.build(GemmSpec(), (1, 2)), InputError, "problem=(1, 2): must be a Problem"),
    "explain": (lambda g: g.explain((1, 2, 3)), InputError, "of=(1, 2, 3): must be a Problem"),
    "kernel": (lambda g: g.kernel("x"), InputError, "of='x': must be a Problem"),
    "workspace_bytes": (lambda g: g.workspace_bytes(7), InputError, "of=7: must be a Problem"),
    "launches": (lambda g: g.launches(None), InputError, "of=None: must be a Problem"),
    "warm with one problem": (lambda g: g.warm(problem(8, 8, 8)), InputError, "problems=Problem("),
    "warm with a shape": (lambda g: g.warm([(1, 2, 3)]), InputError, "problems[0]=(1, 2, 3): must be a Problem"),
    "warm with a number": (lambda g: g.warm(3), InputError, "problems=3: must be a list of Problems"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_word_for_word(name):
    """Every method refuses what is of another type by argument, value and rule."""
    call, kind, message = WRONG[name]
    with pytest.raises(GemmError) as e:
        call(gemm_of())
    assert type(e.value) is kind and str(e.value).startswith(message)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("columns", [(64, 0), (1, 1), (64, 1)])
def test_both_halves_of_a_gated_b_are_copied_whatever_its_strides(layout, columns):
    """Where b's columns share memory (stride 0), both halves start at b itself and each copy has its own place."""
    graph = epi.define(lambda gate, up: gate * 2.0 + up, gated=layout)
    gemm = gemm_of(tile=Tile(64, 64, 64), epilogue=graph, b_load="relayout", d_dtype="fp32")
    base = torch.randn(40, columns[0] if columns[1] else 1).to(BF16)
    a, b = torch.randn(24, 40).to(BF16), base.expand(40, 64)
    product = a.float() @ b.float()
    gate, up = product.chunk(2, -1) if layout == "halves" else (product[:, ::2], product[:, 1::2])
    torch.testing.assert_close(gemm.run(a, b, backend="emulator"), gate * 2 + up, atol=1e-3, rtol=1e-3)


@epi.define
def everything(acc, *, bias: epi.Row, c: epi.Matrix, scale: epi.Scalar):
    """Stored matrices, and reductions finished and partial."""
    h = epi.gelu(acc * scale + bias)
    return epi.Output(
        d=h + c,
        pre=epi.Store(h, dtype="bf16"),
        top=epi.AbsMax(h),
        rows=epi.LogSumExp(h, axis=1, partial=True),
    )


@pytest.mark.parametrize("backend", ["reference", "emulator"])
@pytest.mark.parametrize("graph", [None, everything], ids=["plain", "fused"])
def test_check_mode_compares_every_output_on_every_backend(graph, backend, monkeypatch, caplog):
    """CUTEGEMM_CHECK=1 logs the plan of a right result, also in place, and raises on a wrong output of any kind."""
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    gemm = gemm_of(tile=Tile(64, 64, 64), **({} if graph is None else {"epilogue": graph}))
    a, b, c = torch.randn(70, 40).to(BF16), torch.randn(40, 72).to(BF16), torch.randn(70, 72).to(BF16)
    inputs = {"beta": 0.5} if graph is None else {"bias": torch.randn(72), "scale": 0.5}
    with caplog.at_level("INFO", "cutegemm"):
        gemm.run(a, b, c, **inputs, backend=backend)
        gemm.run(a, b, c, **inputs, out=c, backend=backend)
    assert caplog.text.count("of (70, 72)") == 2 and "warp_specialized" in caplog.text
    (checked, in_place) = gemm._kinds.values()
    served = checked.prepared
    for name in checked.kind.order.outs:

        def spoiled(*call, name=name):
            result = served(*call)
            value = result if graph is None else getattr(result, name)
            (value.values if name == "rows" else value).view(-1)[:1].add_(3.0)
            return result

        monkeypatch.setattr(checked, "prepared", spoiled)
        with pytest.raises(CheckError, match=rf"^{name}: 1 of \d+ elements are off; first at \(") as e:
            gemm.run(a, b, c, **inputs, backend=backend)
        assert isinstance(e.value, GemmError)


@pytest.mark.parametrize(("given", "compared"), [("yes", 1), ("off", 0), ("2", None)])
def test_check_mode_is_on_off_or_refused(given, compared, monkeypatch, caplog):
    """CUTEGEMM_CHECK=2 was silently off."""
    monkeypatch.setenv("CUTEGEMM_CHECK", given)
    a, b = torch.randn(6, 5).to(BF16), torch.randn(5, 7).to(BF16)
    with caplog.at_level("INFO", "cutegemm"):
        if compared is None:
            with pytest.raises(InputError, match="CUTEGEMM_CHECK='2': must be one of"):
                gemm_of().run(a, b)
        else:
            gemm_of().run(a, b)
            assert caplog.text.count("of (6, 7)") == compared


def test_check_mode_covers_calls_on_the_gpu(monkeypatch):
    """The GPU's backend is wrapped like the others."""
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    monkeypatch.setattr(run, "backend_for", lambda request, named: "gpu")
    monkeypatch.setattr(run, "device_of", lambda device: H200)
    monkeypatch.setattr(launcher, "_current_device", lambda: None)
    monkeypatch.setattr(launcher, "_current_stream", lambda index: 0)
    # a kernel that writes nothing
    monkeypatch.setattr(launcher, "function_for", lambda config, index: lambda *args: None)
    gemm, d = gemm_of(), torch.zeros(6, 7)
    with pytest.raises(CheckError, match="^d: 42 of 42 elements are off"):
        gemm.run(A, B, out=d)
    values = reference.evaluate(epi.linear_combination(False), A, B, {"alpha": 1.0}, torch.float32)
    assert gemm.run(A, B, out=values["d"]) is values["d"]
