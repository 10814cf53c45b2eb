# SPDX-License-Identifier: Apache-2.0
"""The operations inside a kernel, where they are our own approximations; on the emulator and on a Hopper GPU."""

import pytest
import torch

from cutegemm import GemmSpec, Tile
from cutegemm import epilogue as epi
from cutegemm.gemm import Gemm
from cutegemm.kernels.epilogue import element_functions as functions

X = torch.cat([torch.linspace(-12, 12, 2032), torch.tensor([0.0, -0.0, 1e-3, -1e30, 1e30, 1e-30])])
X = torch.cat([X, torch.tensor([float("inf"), float("-inf"), float("nan")]), torch.zeros(7)])


@pytest.fixture(params=["emulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request):
    """Where the kernels run."""
    return request.param


def on_kernel(function, backend, dtype):
    """A function of X in a kernel that stores `dtype`, and of X in fp64 as the kernel reads it."""

    @epi.define
    def graph(acc, *, x: epi.Matrix):
        return function(x) + 0.0 * acc

    device = "cuda" if backend == "gpu" else "cpu"
    x = X.reshape(64, 32).to(device)
    a, b = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for shape in ((64, 16), (16, 32)))
    gemm = Gemm(GemmSpec(epilogue=graph, tile=Tile(64, 32, 16), d_dtype=dtype))
    return gemm.run(a, b, x=x, backend=backend).double().cpu().flatten(), X.double()


def test_the_fast_erf_is_a_tanh_of_a_polynomial():
    """Its fit is off by at most 2**-14 of the value wherever fp32 can tell, and saturates beyond."""
    x = torch.linspace(1e-4, 30, 300_001, dtype=torch.float64)
    a, b, c = functions.ERF_TANH
    square = (x * x).clamp(max=functions.ERF_RANGE)
    fitted = torch.tanh(x * (a + square * (b + square * c)))
    assert ((fitted - x.erf()).abs() <= 2.0**-14 * x.erf()).all()
    assert (fitted[x > 5].float() == 1).all()


@pytest.mark.parametrize("scale", [1.0, 0.5**0.5, -3.0])
def test_erf_under_16_bit_outputs(scale, backend):
    """Off by the hardware tanh's 2**-11 and its fit; odd, saturated at infinity, NaN of NaN; scaled or not."""
    got, x = on_kernel(lambda x: epi.erf(x * scale), backend, "fp16")
    expected = torch.erf(scale * x)
    allowed = (2.0**-10.9 + 2.0**-13.9 + 2.0**-11) * expected.abs() + 2.0**-24
    assert torch.equal(got.isnan(), x.isnan())
    assert ((got - expected).abs() <= allowed)[~x.isnan()].all()


def test_erf_under_fp32_outputs(backend):
    """Off by at most 2**-21."""
    got, x = on_kernel(epi.erf, backend, "fp32")
    assert torch.equal(got.isnan(), x.isnan())
    assert ((got - x.erf()).abs() <= 2.0**-21)[~x.isnan()].all()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_that_of_torch(approximate, backend):
    """Stored in fp16, nearer to its own form than the two forms are to each other."""
    got, x = on_kernel(lambda x: epi.gelu(x, approximate), backend, "fp16")
    inside = x.abs() < 10
    error = got - torch.nn.functional.gelu(x, approximate=approximate)
    assert (error.abs() <= 2.0**-10.6 * (0.5 * x).abs() + 2.0**-11 * x.clamp(min=0) + 2.0**-24)[inside].all()


@pytest.mark.sliced
@pytest.mark.parametrize(
    ("dtype", "schedule"),
    [*((x, "cooperative") for x in ("fp16", "bf16", "fp32", "fp8_e4m3", "fp8_e5m2")), ("fp8_e4m3", "simt")],
)
def test_a_choice_between_constants_is_cast(schedule, dtype, backend):
    """What only constants make is a number as any other: it is rounded, reduced and stored."""

    @epi.define
    def graph(acc):
        chosen = epi.cast(epi.where(acc > 0.5, 1.0, 2.3), dtype)
        return epi.Output(d=chosen, low=epi.Store(epi.abs(chosen), "fp8"), top=epi.Max(-chosen))

    device = "cuda" if backend == "gpu" else "cpu"
    tile = {} if schedule == "simt" else {"tile": Tile(64, 32, 16)}
    a, b = (torch.eye(n, 16, dtype=torch.bfloat16, device=device) for n in (20, 16))
    out = Gemm(GemmSpec(epilogue=graph, schedule=schedule, d_dtype="fp32", **tile)).run(a, b, backend=backend)
    other = torch.tensor(2.3).to(getattr(torch, _TORCH.get(dtype, dtype))).float()
    expected = torch.where(a @ b > 0.5, 1.0, other)
    assert torch.equal(out.d, expected) and out.top == -1.0
    assert torch.equal(out.low.float(), expected.to(torch.float8_e4m3fn).float())


_TORCH = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
