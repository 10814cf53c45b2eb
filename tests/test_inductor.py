# SPDX-License-Identifier: Apache-2.0
"""Our product as a choice of Inductor: what is relied on, refusals, and code from another process's cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cutegemm
from cutegemm import inductor
from cutegemm.errors import HardwareError
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[1]
SCRIPT = """
import torch, cutegemm
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.select_algorithm import extern_kernels
cutegemm.inductor.enable()
cutegemm.inductor.enable()
assert len(config.external_matmul) == 1
calls, real = [], extern_kernels.cutegemm_mm
def counted(a, b, *, out):
    calls.append(out.shape)
    return real(a, b, out=out)
extern_kernels.cutegemm_mm = counted
# no product of Inductor's own is left to choose
config.max_autotune, config.max_autotune_gemm_backends = True, ""
a, b = torch.randn(64, 32), torch.randn(32, 48)
y = torch.compile(lambda a, b: a @ b)(a, b)
assert torch.allclose(y, a @ b, atol=1e-5)
assert calls[-1] == (64, 48)
print("hit" if counters["inductor"]["fxgraph_cache_hit"] else "miss", len(calls))
"""


@pytest.fixture(autouse=True)
def disabled():
    """Inductor's configuration without ours, before and after, whatever ran in this process."""
    inductor.disable()
    yield
    inductor.disable()


def test_the_interface_is_the_one_relied_on():
    """A list of functions (a, b, out=) that `mm` reads, and one registration for a function, found by its name."""
    from torch._inductor import config
    from torch._inductor.kernel import mm
    from torch._inductor.select_algorithm import ExternKernelChoice, extern_kernels

    before = list(config.external_matmul)
    inductor.enable()
    assert config.external_matmul == [*before, inductor.cutegemm_mm]
    choice = mm.lazy_register_extern_choice(inductor.cutegemm_mm)
    assert isinstance(choice, ExternKernelChoice) and choice.call_name() == "extern_kernels.cutegemm_mm"
    assert extern_kernels.cutegemm_mm is inductor.cutegemm_mm
    assert mm.lazy_register_extern_choice(inductor.cutegemm_mm) is choice
    inductor.disable()
    assert config.external_matmul == before


@pytest.mark.parametrize("version", ["2.10.1", "2.12.0", "3.0.0a1", "unknown"])
def test_another_torch_is_refused(monkeypatch, version):
    """The refusal names the versions whose interface is known."""
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(
        HardwareError, match=r"is supported for torch 2\.11 and 2\.13; nearest legal value: '2.13'"
    ):
        inductor.enable()


def test_a_torch_without_the_interface_is_refused(monkeypatch):
    """A known version that lacks what is relied on says so."""
    from torch._inductor.kernel import mm

    monkeypatch.delattr(mm, "lazy_register_extern_choice")
    with pytest.raises(HardwareError, match="which this lacks"):
        inductor.enable()


def test_the_function_writes_a_product():
    """Into a given matrix of any strides, for types without a kernel too."""
    for dtype in (torch.bfloat16, torch.float64):
        a, b = torch.randn(9, 12).to(dtype), torch.randn(12, 7).to(dtype)
        out = torch.empty(7, 9, dtype=dtype).t()
        assert inductor.cutegemm_mm(a, b, out=out) is out
        assert torch.allclose(out, a @ b)
    assert cutegemm.inductor is inductor


def test_code_from_another_processs_cache_finds_us(tmp_path):
    """The first process compiles, the second takes the code from the cache: both multiply with our function."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert [x[0] for x in said] == ["miss", "hit"]
