# SPDX-License-Identifier: Apache-2.0
"""`backend="emulator"` through the ordinary door."""

import pytest
import torch

from cutegemm import GemmSpec, Tile, reference
from cutegemm.build import Gemm, representative
from cutegemm.errors import InputError
from tests.support.numerics import assert_close

SPECS = {
    "warp-specialised": GemmSpec(tile=Tile(64, 64, 64)),
    "multicast": GemmSpec(tile=Tile(128, 64, 64), cluster=(2, 1)),
    "multistage": GemmSpec(schedule="multistage", tile=Tile(64, 64, 64), stages=2),
    "gather": GemmSpec(tile=Tile(64, 64, 64), a_load="gather", b_load="gather"),
    "relayout": GemmSpec(tile=Tile(64, 64, 64), a_load="relayout", b_load="relayout"),
}


@pytest.fixture
def no_reference(monkeypatch):
    """The reference backend raises."""

    def banned(*_, **__):
        raise AssertionError("the reference backend was called")

    monkeypatch.setattr(reference, "evaluate", banned)


@pytest.mark.parametrize("shape", [(70, 90, 50), (64, 64, 128), (129, 72, 1)])
@pytest.mark.parametrize("name", SPECS)
def test_the_compiled_kernel_computes(name, shape, no_reference):
    """Each family's own PTX gives alpha A B + beta C on CPU tensors, and no torch product takes part."""
    m, n, k = shape
    gemm = Gemm(SPECS[name], representative(GemmSpec()))
    torch.manual_seed(m)
    pad = lambda x: -(-x // 8) * 8
    a = torch.randn(m, pad(k)).bfloat16()[:, :k]
    b = torch.randn(k, pad(n)).bfloat16()[:, :n]
    c = torch.randn(m, n).bfloat16()
    d = gemm.run(a, b, c, alpha=1.5, beta=0.5, backend="emulator")
    assert_close(d, a, b, c, 1.5, 0.5)


def test_in_place_and_batched(no_reference):
    """`out` may be c, and a 2-D operand serves every batch."""
    gemm = Gemm(SPECS["warp-specialised"], representative(GemmSpec()))
    a, b, c = torch.randn(2, 40, 24).bfloat16(), torch.randn(24, 56).bfloat16(), torch.randn(2, 40, 56).bfloat16()
    before = c.clone()
    assert gemm.run(a, b, c, out=c, beta=2.0, backend="emulator") is c
    assert_close(c, a, b, before, 1.0, 2.0)


def test_overlap_is_refused_on_the_emulator_too():
    """Nothing is written when out overlaps a."""
    gemm = Gemm(SPECS["warp-specialised"], representative(GemmSpec()))
    a = torch.randn(64, 64).bfloat16()
    with pytest.raises(InputError, match="^out: overlaps a in memory"):
        gemm.run(a, torch.randn(64, 64).bfloat16(), out=a, backend="emulator")
