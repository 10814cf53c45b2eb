# SPDX-License-Identifier: Apache-2.0
"""Check mode and a kernel that never ends; what it compares is in `test_calls`."""

import types

import pytest
import torch

from cutegemm import GemmSpec
from cutegemm.errors import CheckError
from cutegemm.gemm import Gemm
from cutegemm.running.numerics import checked

A, B = torch.randn(6, 5), torch.randn(5, 7)


class Event:
    """An event that has ended from the given query on."""

    def __init__(self, ends_at):
        self.ends_at, self.queries = ends_at, 0

    def query(self):
        self.queries += 1
        return self.queries > self.ends_at


@pytest.mark.parametrize(("before", "after", "hangs"), [(0, 1e9, True), (40, 50, False), (0, 3, False)])
def test_check_mode_raises_for_a_call_that_does_not_end(before, after, hangs, monkeypatch):
    """The bound counts from when what came before has ended; the error says spec, problem and that all is lost."""
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    now = [0.0]
    pause = lambda seconds: now.append(now.pop() + seconds)
    monkeypatch.setattr(checked, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
    monkeypatch.setattr(checked, "HANG_SECONDS", 15 * checked.POLL_SECONDS)
    events = [Event(before), Event(after)]
    monkeypatch.setattr(checked, "_event", lambda device: events.pop(0))
    gemm = Gemm(GemmSpec())
    if not hangs:
        gemm.run(A, B, backend="reference")
        return
    with pytest.raises(
        CheckError, match="has not ended after 0 s: a deadlock. The CUDA context is lost"
    ) as e:
        gemm.run(A, B, backend="reference")
    assert "GemmSpec(" in str(e.value) and "Problem(m=6, n=7, k=5" in str(e.value)


@pytest.mark.parametrize("math", ["tf32", "tf32x3"])
def test_check_mode_holds_torch_to_exact_products(math, monkeypatch):
    """On a CPU they are, whatever a kernel would multiply."""
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    assert torch.allclose(Gemm(GemmSpec(math=math)).run(A, B), A @ B, atol=1e-5)


def test_check_mode_records_no_event_while_a_graph_is_captured(monkeypatch):
    """Nothing runs during a capture, so nothing can be waited for."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert checked._event(torch.device("cuda", 0)) is None
    assert checked._event(torch.device("cpu")) is None
