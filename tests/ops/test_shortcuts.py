# SPDX-License-Identifier: Apache-2.0
"""Shortcuts of calls, on a machine without a GPU: kernels, device and stream are stand-ins that record."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import cutegemm
from cutegemm.errors import InputError
from cutegemm.gemm import recalled
from cutegemm.ops import (
    entry_points,
    products,
    shortcuts,
)
from cutegemm.ops.gradients import autograd, plain_products
from cutegemm.running.arguments.call import REMEMBERED
from cutegemm.running.backends import shortcut
from tests.support.launched import forget, launches, r
from tests.support.torch_ops import survivors

launched = pytest.fixture(launches)
CALLS = {
    "matmul": (lambda a, b: cutegemm.matmul(a, b, alpha=2.0), ((48, 64), (64, 32))),
    "batches": (cutegemm.matmul, ((3, 48, 64), (64, 32))),
    "linear": (cutegemm.linear, ((48, 64), (32, 64))),
    "few rows": (cutegemm.linear, ((1, 64), (128, 64))),
    "leading dimensions": (cutegemm.linear, ((2, 3, 48, 64), (32, 64))),
    "bias": (cutegemm.linear, ((48, 64), (32, 64), (32,))),
    "one tensor twice": (lambda x: cutegemm.matmul(x, x), ((64, 64),)),
    "one tensor twice, bias": (lambda x, bias: cutegemm.linear(x, x, bias), ((64, 64), (64,))),
    "bias, leading dimensions": (cutegemm.linear, ((2, 48, 64), (32, 64), (32,))),
}


@pytest.mark.parametrize("gradient", [False, True], ids=["", "with gradients"])
@pytest.mark.parametrize("name", CALLS)
def test_a_later_call_launches_what_the_first_did(name, gradient, launched, monkeypatch):
    """The same arguments but for D's address, D alike, and neither door nor run looks at the call a second time."""
    f, shapes = CALLS[name]
    tensors = [r(*shape).requires_grad_(gradient) for shape in shapes]
    first = f(*tensors)
    for module in (entry_points, autograd):
        monkeypatch.setattr(module, "serve", None)
    monkeypatch.setattr(cutegemm.Gemm, "run", None)
    later = f(*tensors)
    assert (later.shape, later.stride(), later.dtype) == (first.shape, first.stride(), first.dtype)
    assert later.requires_grad is gradient and (later.grad_fn is not None) is gradient
    (*known, place), (*again, other) = (x[0] for x in launched)
    assert known == again and (place, other) == (first.data_ptr(), later.data_ptr())
    assert launched[0][1:] == launched[1][1:]


@pytest.mark.parametrize("name", [x for x in CALLS if "twice" not in x])
def test_a_later_backward_pass_launches_what_the_first_did(name, launched, monkeypatch):
    """Forward and both products of the gradient have the same kernels and operands; only D's addresses are new."""
    f, shapes = CALLS[name]
    tensors = [r(*shape).requires_grad_() for shape in shapes]
    first = f(*tensors)
    g = r(*first.shape)
    known = torch.autograd.grad(first, tensors, g)
    count = len(launched)
    for module in (entry_points, shortcuts, autograd, plain_products):
        monkeypatch.setattr(module, "serve", None)
    monkeypatch.setattr(cutegemm.Gemm, "run", None)
    later = f(*tensors)
    again = torch.autograd.grad(later, tensors, g)
    assert [(x.shape, x.stride(), x.dtype) for x in again] == [(x.shape, x.stride(), x.dtype) for x in known]
    assert len(launched) == 2 * count == 6
    for one, other in zip(launched[:count], launched[count:], strict=True):
        assert one[0][:-1] == other[0][:-1] and one[0][-1] != other[0][-1] and one[1:] == other[1:]


def test_kinds_of_one_shape_that_take_turns_have_their_own(launched, monkeypatch):
    """Layers of a model: other strides of x and of its gradient, parameters, and what needs a gradient."""
    weight, other = r(32, 64).requires_grad_(), torch.nn.Parameter(r(32, 64))
    calls = [
        (x, w, g)
        for x in (r(48, 64), r(64, 48).t(), r(48, 64).requires_grad_())
        for w in (weight, other)
        for g in (r(48, 32), r(32, 48).t())
    ]

    def each():
        for x, w, g in calls:
            cutegemm.linear(x, w).backward(g)
            with torch.no_grad():
                cutegemm.linear(x, w)

    for _ in range(2):
        each()
    count = len(launched)
    for module in (entry_points, shortcuts, autograd, plain_products):
        monkeypatch.setattr(module, "serve", None)
    monkeypatch.setattr(cutegemm.Gemm, "run", None)
    each()
    assert 3 * (len(launched) - count) == len(launched)


def test_as_many_shapes_as_runs_are_kept_have_shortcuts(launched, monkeypatch):
    """A shortcut is cached under its shapes and under its kind; both fit for more than half of those kept."""
    b, count = r(16, 16), REMEMBERED // 2 + 8
    calls = [(r(m, 16), b) for m in range(1, count + 1)]
    for a, b in calls:
        cutegemm.matmul(a, b)
    monkeypatch.setattr(cutegemm.Gemm, "run", None)
    for a, b in calls:
        cutegemm.matmul(a, b)
    assert len(launched) == 2 * count


def e(*shape):
    """Random elements of 8 bits, and scales of their rows."""
    return torch.randn(shape).to(torch.float8_e4m3fn), torch.rand(shape[:-1])


def scaled(name):
    """A call of scaled operands, its tensors by name, and D's shape."""
    (a, rows), (b, columns) = e(48, 256), e(32, 256)
    named = {"scale_a": rows, "scale_b": columns}
    wide, lines = e(2, 3, 256)
    return {
        "matmul": (lambda **x: cutegemm.matmul(a, b.T, **x), named, (48, 32)),
        "linear": (lambda **x: cutegemm.linear(a, b, **x), named, (48, 32)),
        "bias": (lambda bias, **x: cutegemm.linear(a, b, bias, **x), named | {"bias": r(32)}, (48, 32)),
        "one scale": (lambda **x: cutegemm.linear(a, b, **x), {"scale_a": torch.tensor(0.5)}, (48, 32)),
        "one, as torch has it": (
            lambda **x: cutegemm.linear(a, b, **x),
            {"scale_a": torch.full((1, 1), 0.5), "scale_b": torch.full((1,), 0.5)},
            (48, 32),
        ),
        "leading dimensions": (
            lambda **x: cutegemm.linear(wide, b, **x), {"scale_a": lines, "scale_b": columns}, (2, 3, 32)
        ),
        "blocks": (
            lambda **x: cutegemm.linear(a, b, **x),
            {"scale_a": torch.rand(2, 48).T, "scale_b": torch.rand(1, 2)},
            (48, 32),
        ),
    }[name]  # fmt: skip


SCALED = ("matmul", "linear", "bias", "one scale", "leading dimensions", "blocks")


@pytest.mark.parametrize("name", SCALED)
def test_a_later_scaled_call_launches_what_the_first_did(name, launched, monkeypatch):
    """As of 16 bits: the launch of the first call, but for D; another layout, type or scale takes the long way."""
    f, named, shape = scaled(name)
    with torch.no_grad():
        first = f(**named)
        with monkeypatch.context() as patched:
            patched.setattr(products, "serve", None)
            patched.setattr(cutegemm.Gemm, "run", None)
            later = f(**named)
        assert later.shape == first.shape == shape and later.dtype == first.dtype and later.is_contiguous()
        (known, *rest), (again, *others) = launched
        assert rest == others
        assert {(x, y) for x, y in zip(known, again) if x != y} == {(first.data_ptr(), later.data_ptr())}
        monkeypatch.setattr(products, "serve", lambda *args: ("the long way",))
        name, known = next(iter(named.items()))
        unaligned = torch.rand(known.numel() + 1)[1:].view(known.shape)
        for other in (unaligned, torch.zeros(*known.shape, 2)[..., 0], known.double()):
            assert f(**named | {name: other}) == "the long way"


def without_memory():
    """A matrix whose memory its owner has freed."""
    x = r(48, 64)
    x.untyped_storage().resize_(0)
    return x


def odd_address(*shape):
    """A matrix that begins at no multiple of 16 bytes."""
    count = torch.Size(shape).numel()
    return r(count + 1)[1:].view(shape)


def negated(*shape):
    """A matrix whose elements are read with the other sign."""
    x = torch.zeros(*shape, 2, dtype=torch.float32)
    return torch.view_as_complex(x).conj().imag


A, B, BIAS = (48, 64), (64, 32), (32,)
OTHERS = {
    "a's extents": lambda: (r(47, 64), r(*B)),
    "a's strides": lambda: (r(64, 48).t(), r(*B)),
    "types": lambda: (r(*A).half(), r(*B).half()),
    "a's address": lambda: (odd_address(*A), r(*B)),
    "b's address": lambda: (r(*A), odd_address(*B)),
    "a gradient": lambda: (r(*A), r(*B).requires_grad_()),
    "b's device": lambda: (r(*A), r(*B).to("meta")),
    "memory": lambda: (without_memory(), r(*B)),
    "class": lambda: (r(*A), torch.nn.Parameter(r(*B), False)),
    "no tensor": lambda: (r(*A).float().numpy(), r(*B)),
    "one tensor twice": lambda: (x := r(*A), x),
}


def of(a, b, bias=None):
    """The shortcut of a product of these tensors."""
    program = entry_points._PLAIN if bias is None else entry_points._BIASED
    cutegemm.matmul(a, b) if bias is None else cutegemm.linear(a, b, bias)
    found = program.gemm.shortcuts.get((a.shape, b.shape))
    assert found is not None and found is not shortcut.none
    return found


@pytest.mark.parametrize("name", OTHERS)
def test_a_call_of_another_kind_is_not_taken(name, launched):
    """Everything that kinds of calls are told apart by; nothing is launched."""
    found = of(r(*A), r(*B))
    assert found(r(*A), r(*B), None, 1.0) is not None
    count, others = len(launched), OTHERS[name]()
    assert found(*others, None, 1.0) is None
    assert len(launched) == count


def test_one_tensor_may_be_both_operands(launched):
    """Where it lies as both do; of two tensors or of one it is the same kind of call."""
    for x, y in ((r(64, 64), r(64, 64)), (r(64, 64),) * 2):
        forget()
        found = of(x, y)
        assert found(x, x, None, 1.0) is not None and launched[-1][0][0] == launched[-1][0][1] == x.data_ptr()
        assert found(r(64, 64), y, None, 1.0) is not None
        z = x.t()
        assert found(z, z, None, 1.0) is None
    found = of(x, x.t())
    assert found(x, x, None, 1.0) is None


def test_negated_views_are_not_taken(launched):
    """The dispatcher's key tells them from a matrix of the same layout."""
    plain = torch.zeros(48, 64, 2)[..., 0]
    found = of(plain, torch.zeros(64, 32))
    assert negated(48, 64).stride() == plain.stride()
    assert found(plain, torch.zeros(64, 32), None, 1.0) is not None
    assert found(negated(48, 64), torch.zeros(64, 32), None, 1.0) is None


def test_a_gradient_that_is_not_recorded_may_be_left_out(launched):
    """A shortcut that was made under no_grad serves parameters there, and not where autograd records."""
    a, b = r(*A), r(*B).requires_grad_()
    with torch.no_grad():
        found = of(a, b)
        assert found(a, b, None, 1.0) is not None
    assert found(a, b, None, 1.0) is None
    y = cutegemm.matmul(a, b)
    assert y.grad_fn is not None


@pytest.mark.parametrize("weight", [r, odd_address])
def test_a_bias_is_looked_at_too(weight, launched):
    """Its presence, extent and address, beside those of a weight that may begin anywhere."""
    w, bias = weight(32, 64), r(*BIAS)
    found = of(r(*A), w, bias)
    assert found(r(*A), w, bias, 1.0) is not None
    for other in (None, r(31), odd_address(32), bias.float()):
        assert found(r(*A), w, other, 1.0) is None


class Watching(TorchDispatchMode):
    """Counts our ops."""

    count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        Watching.count += "cutegemm" in str(op)
        return op(*args, **(kwargs or {}))


def test_transforms_are_seen_behind_a_shortcut(launched):
    """Modes, autocast, vmap and tangents are asked for at every call, also where a shortcut is known."""
    a, b = r(*A), r(*B)
    of(a, b)
    with Watching():
        cutegemm.matmul(a, b)
    assert Watching.count == 1
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(cutegemm.matmul(a, b)) is FakeTensor
    with torch.autocast("cpu", torch.float16):
        assert cutegemm.matmul(a, b).dtype == torch.float16
    count = len(launched)
    torch.vmap(lambda x: cutegemm.matmul(a, b))(torch.zeros(2))
    assert len(launched) == count + 1
    with forward_ad.dual_level(), pytest.raises(InputError, match="tangent"):
        cutegemm.matmul(forward_ad.make_dual(a, a), b)
    with pytest.raises(InputError, match="fallback"):
        cutegemm.matmul(a, b, fallback="never")
    with pytest.raises(InputError, match="memory of its own"):
        cutegemm.matmul(without_memory(), b)


@pytest.mark.parametrize(("f", "b"), [(cutegemm.matmul, (64, 32)), (cutegemm.linear, (32, 64))])
def test_shapes_that_are_no_key_have_no_shortcut(f, b):
    """Extents that are symbols, as traced calls have them, and what some other object calls its shape."""
    tensors = r(*A), r(*b)
    graph = make_fx(lambda *x: f(*x, fallback="reference"), tracing_mode="symbolic")(*tensors)
    assert torch.equal(graph(*tensors), f(*tensors, fallback="reference"))
    with pytest.raises(InputError, match="must be a torch.Tensor"):
        f(SimpleNamespace(shape=[48, 64]), tensors[1])


@pytest.mark.parametrize("gradient", [False, True])
def test_a_trace_has_the_product(gradient, launched):
    """torch.jit.trace sees the op, behind which a kernel writes D, and no D that nobody has written."""
    tensors = r(*A).requires_grad_(gradient), r(*B), r(32, 64)
    of(r(*A), r(*B))

    def calls(a, b, weight):
        return (
            cutegemm.matmul(a, b),
            cutegemm.linear(a, weight),
            cutegemm.matmul(a, b, spec=cutegemm.GemmSpec()),
        )

    traced = torch.jit.trace(calls, tensors, check_trace=False)
    assert str(traced.graph).count("= cutegemm::gemm") == 3


def test_several_launches_are_launched_again(launched):
    """A copy of an operand first, then the product; D's address and the workspace's are new."""
    spec = cutegemm.GemmSpec(a_load="relayout", swap=False)
    gemm, a, b = cutegemm.Gemm(spec), r(*A), r(*B)
    gemm.run(a, b)
    prepared = recalled(gemm, a, b, {}, None)
    assert prepared is not None and len(launched) == 2
    found = shortcut.shortcut(prepared, (a, b))
    d = found(a, b, None, 1.0)
    assert d.shape == (48, 32) and len(launched) == 4 and found(r(48, 72), b, None, 1.0) is None
    for one, other in zip(launched[:2], launched[2:], strict=True):
        assert one[1:] == other[1:]
    assert a.data_ptr() in launched[2][0] and d.data_ptr() in launched[3][0]
    assert shortcut.none(a, b, None, 1.0) is None


def test_attempts_to_make_a_shortcut_end(launched, monkeypatch):
    """Kinds without one, and kinds of one shape that take turns: after a few they are served as they are."""
    made = []
    monkeypatch.setattr(shortcuts, "shortcut", lambda *args: made.append(args) or shortcut.none)
    a, b = r(*A), r(*B)
    for _ in range(3 * shortcuts.ATTEMPTS):
        cutegemm.matmul(a, b)
    assert len(made) == shortcuts.ATTEMPTS and len(launched) == 3 * shortcuts.ATTEMPTS
    forget()
    cutegemm.matmul(a, b)
    assert len(made) == shortcuts.ATTEMPTS + 1


def test_a_torch_without_the_check_has_no_shortcuts(launched, monkeypatch):
    """Calls are served as before."""
    monkeypatch.setattr(shortcut, "_Guards", None)
    for _ in range(2):
        cutegemm.matmul(r(*A), r(*B))
    assert len(launched) == 2
    assert set(entry_points._PLAIN.gemm.shortcuts.values()) == {shortcut.none}


def test_a_shortcut_keeps_no_tensor(launched):
    """Neither the first call's nor a later one's."""

    def calls():
        a, b = r(*A), r(*B)
        for _ in range(3):
            cutegemm.matmul(a, b)
            cutegemm.matmul(a, b.clone().requires_grad_())

    assert survivors(calls) == []
    assert len(launched) == 6
