# SPDX-License-Identifier: Apache-2.0
"""A launch gathers the rows of its groups by index as it loads them: on the emulator, races on, beside torch's."""

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile, emulator
from cutegemm.compiling.resources import SpillWarning
from cutegemm.errors import InputError, PlanError
from cutegemm.ops.groups import gathering, group_call, grouped
from cutegemm.running.arguments.call import Memo
from tests.support.groups import ENDS, GPU_SHAPES, SMALL, SWAPPED, OnGpu, drawn
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

KERNELS = {"tokens along rows": SMALL, "tokens along columns": SWAPPED}
TOKENS, ROWS = 57, 200


class Gathered:
    """What `emulator.run` runs."""

    def __init__(self, **named):
        self.spec, self.named = GemmSpec(a_load="cp_async", **named.pop("fields")), named

    def run(self, a, b, ends, rows, out, backend):
        """One launch."""
        return cutegemm.grouped_mm(
            a, b, ends, rows=rows, out=out, spec=self.spec, fallback=backend, **self.named
        )


def indices(dtype=torch.int32, tokens=TOKENS):
    """Rows in any order, some often, some outside of any extent."""
    drawn = torch.randint(0, tokens, (ROWS,), generator=torch.Generator().manual_seed(1))
    outside = torch.tensor([-1, tokens, -(2**31), 2**31 - 1])
    drawn[[0, 64, 131, 199]] = outside
    if dtype is torch.int64:
        # whose low 32 bits name a row
        drawn[[7, 140]] = torch.tensor([2**32 + 3, -(2**40) + 3])
    return drawn.to(dtype)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("ends", ["uneven", "a tail", "decreasing and outside"])
def test_rows_are_gathered_as_they_are_loaded(name, dtype, ends, monkeypatch):
    """Every group has the rows that its indices name; an index outside names zeros; nothing is copied before."""
    a, b, told = drawn(TOKENS, 96), drawn(len(ENDS[ends]), 96, 136), torch.tensor(ENDS[ends])
    rows, d = indices(dtype), torch.full((ROWS, 136), 7.0).bfloat16()
    wanted = cutegemm.grouped_mm(a, b, told, rows=rows, fallback="reference")
    monkeypatch.delattr(grouped, "gathered")
    run = emulator.run(Gathered(fields=KERNELS[name]), a, b, told, rows, d, options=RACES)
    assert not run.findings
    torch.testing.assert_close(d, wanted, rtol=1e-2, atol=1e-2)


def test_stages_whose_rows_a_warp_does_not_fill():
    """In a tile of 48 elements of K each of a thread's chunks has a place in the swizzle of its own."""
    a, b, told, rows = drawn(TOKENS, 70), drawn(2, 70, 72), torch.tensor([90, 200]), indices()
    d = torch.empty(ROWS, 72).bfloat16()
    fields = {**SMALL, "tile": Tile(64, 64, 48)}
    assert not emulator.run(Gathered(fields=fields), a, b, told, rows, d, options=RACES).findings
    wanted = cutegemm.grouped_mm(a, b, told, rows=rows, fallback="reference")
    torch.testing.assert_close(d, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("offset", "pitch"), [(0, 98), (4, 100)], ids=["4 bytes", "8 bytes"])
def test_rows_begin_at_any_word(offset, pitch):
    """Copies are as wide as the rows' addresses allow; K is no multiple of the tile's."""
    a = drawn(TOKENS, pitch + offset)[:, offset : offset + 70]
    b, told, rows = drawn(2, 70, 72), torch.tensor([90, 200]), indices()
    d = torch.empty(ROWS, 72).bfloat16()
    assert not emulator.run(Gathered(fields=SMALL), a, b, told, rows, d, options=RACES).findings
    wanted = cutegemm.grouped_mm(a, b, told, rows=rows, fallback="reference")
    torch.testing.assert_close(d, wanted, rtol=1e-2, atol=1e-2)


def test_a_thread_copies_more_chunks_than_a_word_has_bits():
    """256 rows of 64 elements in words of 4 bytes are 64 chunks a thread: which of their rows exist, two words say."""
    a = drawn(TOKENS, 98)[:, 2:72]
    b, told, rows = drawn(2, 70, 72), torch.tensor([7, 200]), indices()
    d, fields = torch.empty(ROWS, 72).bfloat16(), {**SMALL, "tile": Tile(256, 64, 64)}
    with pytest.warns(SpillWarning):
        run = emulator.run(Gathered(fields=fields), a, b, told, rows, d, options=RACES)
    wanted = cutegemm.grouped_mm(a, b, told, rows=rows, fallback="reference")
    torch.testing.assert_close(d, wanted, rtol=1e-2, atol=1e-2)
    assert not run.findings


def test_what_the_planner_leaves_open():
    """Tile, stages and schedule are chosen; bias, gate and scatter as of other groups."""
    from cutegemm import epilogue as epi

    a, b, told, rows = drawn(TOKENS, 64), drawn(2, 64, 128), torch.tensor([90, 200]), indices()
    spec = GemmSpec(a_load="cp_async", sms=4)
    for named in (
        {"bias": drawn(2, 128).float()},
        {"epilogue": epi.swiglu("interleaved")},
        {"scatter": torch.arange(ROWS).flip(0), "weight": drawn(ROWS).float()},
    ):
        found = cutegemm.grouped_mm(a, b, told, rows=rows, spec=spec, fallback="emulator", **named)
        wanted = cutegemm.grouped_mm(a, b, told, rows=rows, fallback="reference", **named)
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_gradients_are_of_gathered_rows(monkeypatch):
    """Where something is recorded, the bias alone too, rows are copied first."""
    seen, own = [], group_call.gathered
    monkeypatch.setattr(group_call, "gathered", lambda *x: seen.append(x) or own(*x))
    a, b, told, rows = drawn(TOKENS, 64), drawn(2, 64, 72), torch.tensor([90, 200]), indices()
    bias = drawn(2, 72).float().requires_grad_()
    spec = GemmSpec(tile=Tile(64, 64, 64), a_load="cp_async")
    found = cutegemm.grouped_mm(a, b, told, rows=rows, bias=bias, spec=spec, fallback="emulator")
    assert len(seen) == 1
    found.float().sum().backward()
    torch.testing.assert_close(bias.grad, torch.tensor([90.0, 110.0])[:, None].expand(-1, 72))


def test_what_cannot_be(monkeypatch):
    """Refused before anything is written."""
    a, b, told = drawn(TOKENS, 64), drawn(2, 64, 72), torch.tensor([90, 200])
    spec = GemmSpec(a_load="cp_async")
    for rows, message in [
        (torch.zeros(3), "int32 or int64"),
        (torch.zeros(3, 2).int(), r"rows\.shape.*1 dimension"),
        (torch.zeros(400).int()[::2], r"rows\.stride\(\)"),
        ([1, 2], "rows"),
    ]:
        with pytest.raises(InputError, match=message):
            cutegemm.grouped_mm(a, b, told, rows=rows, spec=spec, fallback="emulator")
    with pytest.raises(PlanError, match="a_load"):
        cutegemm.grouped_mm(a[:, ::2], b[:, ::2], told, rows=indices(), spec=spec, fallback="emulator")
    with pytest.raises(PlanError, match="a_load"):
        cutegemm.grouped_mm(drawn(64, TOKENS).T, b, told, rows=indices(), spec=spec, fallback="emulator")
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    with pytest.raises(InputError, match=r"rows\[0\]=-1.*\[0, 57\)"):
        cutegemm.grouped_mm(a, b, told, rows=indices(), spec=spec, fallback="emulator")


def test_the_kernel_gathers_by_default(monkeypatch):
    """Aligned 16-bit rows; others, and those of a spec with another load, are copied before. Both give the same."""
    copies, own = [], grouped.gathered
    monkeypatch.setattr(grouped, "gathered", lambda *x: copies.append(x) or own(*x))
    b, told, rows = drawn(2, 64, 72), torch.tensor([90, 200]), indices()
    for a, spec, count in [
        (drawn(TOKENS, 64), None, 0),
        (drawn(TOKENS, 64), GemmSpec(sms=4), 0),
        (drawn(TOKENS, 64), GemmSpec(a_load="tma"), 1),
        (drawn(TOKENS, 65)[:, :64], None, 1),
        (drawn(64, TOKENS).T, None, 1),
    ]:
        copies.clear()
        found = cutegemm.grouped_mm(a, b, told, rows=rows, spec=spec, fallback="emulator")
        assert len(copies) == count
        wanted = cutegemm.grouped_mm(a, b, told, rows=rows, fallback="reference")
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_rows_are_copied_where_a_copy_pays(monkeypatch):
    """Both ways give the same, also for indices out of range; the load that a spec requests is used anyway."""
    copies, own = [], grouped.gathered
    monkeypatch.setattr(grouped, "gathered", lambda *x: copies.append(x) or own(*x))
    b, told, rows = drawn(2, 64, 72), torch.tensor([90, 200]), indices()
    for pays, spec, count in [(False, None, 0), (True, None, 1), (True, GemmSpec(a_load="cp_async"), 0)]:
        copies.clear()
        monkeypatch.setattr(gathering, "_pays", Memo())
        monkeypatch.setattr(gathering, "copy_pays", lambda *_, pays=pays: pays)
        a = drawn(TOKENS, 64)
        found = cutegemm.grouped_mm(a, b, told, rows=rows, spec=spec, fallback="emulator")
        assert len(copies) == count
        wanted = cutegemm.grouped_mm(a, b, told, rows=rows, fallback="reference")
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
        assert not found[0].any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
@pytest.mark.parametrize("groups", [1, 8, 128])
def test_rows_are_gathered_on_the_gpu(shape, groups, dtype):
    """The planner's kernels give the bits of torch's copy of the rows; a graph replays other rows and ends."""
    m, on = shape[0], OnGpu(shape, groups)
    rows, spec = torch.zeros(m, dtype=dtype, device="cuda"), GemmSpec(a_load="cp_async")
    graph = on.captured(rows=rows, spec=spec)
    for _ in range(3):
        on.moved()
        rows.copy_(torch.randint(-1, m + 1, (m,), generator=on.draw, device="cuda"))
        graph.replay()
        inside = (rows >= 0) & (rows < m)
        copied = torch.where(inside[:, None], on.a[rows.clamp(0, m - 1).long()], torch.zeros_like(on.a))
        wanted = cutegemm.grouped_mm(copied, on.b, on.ends, spec=spec, fallback="error")
        assert torch.equal(on.d, wanted)
