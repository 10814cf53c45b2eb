# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries: taken in without a copy, given back in kind, refused where they cannot be written."""

import numpy as np
import pytest
import torch

from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.gemm import Gemm, representative
from cutegemm.running.arguments import arrays


class Foreign:
    """An array of a library that has nothing but DLPack; it counts how often its memory is asked for."""

    def __init__(self, values):
        self.values = values
        self.asked = 0

    def __dlpack__(self, **options):
        self.asked += 1
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __array_namespace__(self):
        return Foreign

    @staticmethod
    def from_dlpack(tensor):
        """A tensor in this library's form."""
        return Foreign(tensor)


def gemm(spec=None):
    """Kernels that are not compiled."""
    spec = GemmSpec() if spec is None else spec
    return Gemm(spec, representative(spec))


def drawn(*shape, dtype=np.float32):
    """Random numbers."""
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def test_numpy_in_numpy_out():
    """alpha, beta and C as arrays; the result is an array, and out= the array that was given."""
    a, b, c = drawn(9, 12), drawn(12, 7), drawn(9, 7)
    d = gemm().run(a, b, c, alpha=2.0, beta=0.5)
    assert type(d) is np.ndarray and np.allclose(d, 2 * a @ b + c / 2, atol=1e-5)
    out = np.zeros((9, 7), np.float32)
    assert gemm().run(a, b, out=out) is out and np.allclose(out, a @ b, atol=1e-5)
    flipped = gemm().run(np.asfortranarray(a), b.T.copy().T)
    assert np.allclose(flipped, a @ b, atol=1e-5)


def test_memory_is_shared_and_the_kind_is_kept():
    """A library of its own: nothing is copied on the way in, and its own array comes out."""
    x = torch.randn(9, 12).bfloat16()
    a, b = Foreign(x), Foreign(torch.randn(12, 7).bfloat16())
    assert arrays.tensor("a", a).data_ptr() == x.data_ptr()
    d = gemm().run(a, b)
    assert type(d) is Foreign
    assert torch.equal(d.values, gemm().run(x, b.values))
    assert type(gemm().run(x, b)) is torch.Tensor


@epi.define
def several(acc, *, bias: epi.Row, s: epi.Scalar):
    """Two outputs and a reduction."""
    h = acc * s + bias
    return epi.Output(d=h, twice=h * 2.0, total=epi.Sum(h))


def test_fused_inputs_and_outputs_are_arrays_too():
    """Rows and scalars by name, several outputs, one of which is given."""
    a, b, bias = drawn(9, 12), drawn(12, 7), drawn(7)
    twice = np.zeros((9, 7), np.float32)
    fused = gemm(GemmSpec(epilogue=several))
    out = fused.run(a, b, bias=bias, s=np.array(0.5, np.float32), out={"twice": twice})
    h = a @ b * 0.5 + bias
    assert out.twice is twice and np.allclose(twice, 2 * h, atol=1e-4)
    assert type(out.d) is np.ndarray and np.allclose(out.d, h, atol=1e-4)
    assert np.allclose(out.total, h.sum(), atol=1e-3)


def test_the_emulator_takes_arrays():
    """The compiled kernel, on NumPy's memory."""
    a, b = drawn(16, 24, dtype=np.float16), drawn(24, 8, dtype=np.float16)
    d = gemm().run(a, b, backend="emulator")
    assert type(d) is np.ndarray and np.allclose(d, a.astype(np.float32) @ b.astype(np.float32), atol=2e-2)


def test_what_cannot_be_taken_in_is_refused():
    """Types without a kernel, arrays that torch cannot read, and outputs that never change."""
    a = drawn(4, 4)
    with pytest.raises(
        InputError, match="a.dtype=torch.float64: must be float16, bfloat16, float32, float8_e4m3fn"
    ):
        gemm().run(a.astype(np.float64), a)
    with pytest.raises(InputError, match="b=.*: must be an array that torch can import by DLPack"):
        gemm().run(a, np.zeros((4, 4), dtype="U1"))
    with pytest.raises(InputError, match="a: must be a torch.Tensor, got list"):
        gemm().run([[1.0]], a)
    Frozen = type("Frozen", (Foreign,), {"__module__": "jaxlib.test"})
    with pytest.raises(InputError, match="out=.*: arrays of jaxlib are immutable"):
        gemm().run(a, a, out=Frozen(torch.zeros(4, 4)))


def test_what_torch_would_not_look_at_is_refused():
    """Strides that end its process, outputs that are read-only; and a library that takes nothing back."""
    a, fixed = drawn(4, 4), drawn(4, 4)
    fixed.setflags(write=False)
    with pytest.raises(InputError, match=r"b.strides=\(-16, 4\): must not be negative: pass a copy"):
        gemm().run(a, a[::-1])
    with pytest.raises(InputError, match="d.flags.writeable=False: an output must be writable"):
        gemm().run(a, a, out={"d": fixed})
    assert np.allclose(gemm().run(fixed, a), fixed @ a, atol=1e-5)
    Mute = type("Mute", (Foreign,), {"__array_namespace__": lambda self: object()})
    with pytest.raises(InputError, match="a='Mute': tests has no from_dlpack"):
        gemm().run(Mute(torch.zeros(4, 4)), a)


def test_jax_arrays_stay_jax_arrays():
    """JAX in, JAX out, in bf16."""
    jnp = pytest.importorskip("jax.numpy")
    a, b = jnp.ones((8, 16), jnp.bfloat16), jnp.full((16, 4), 0.5, jnp.bfloat16)
    d = gemm().run(a, b)
    assert isinstance(d, type(a)) and d.dtype == jnp.bfloat16 and bool((d == 8).all())
    with pytest.raises(InputError, match="are immutable"):
        gemm().run(a, b, out=jnp.zeros((8, 4), jnp.bfloat16))
