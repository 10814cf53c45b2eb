# SPDX-License-Identifier: Apache-2.0
"""Counters of streams and of captured calls: no two use the same ones, and memory is zeroed once."""

from __future__ import annotations

import threading

import pytest
import torch

from cutegemm import GemmSpec, Tile
from cutegemm.epilogue.graph import linear_combination
from cutegemm.launch_layout import SPLIT_PLACES, layout_of
from cutegemm.running import run
from cutegemm.running.arguments.named import Signature
from cutegemm.running.backends import counters, launcher
from cutegemm.running.backends.counters import CHUNK, LEAST, Counters


@pytest.fixture
def made():
    """(counters, sizes of memory that was zeroed)."""
    sizes = []

    def zeros(size):
        sizes.append(size)
        return len(sizes) << 32, None

    return Counters(zeros), sizes


def test_calls_on_a_stream_share_theirs(made):
    """Two streams have two places; a call that needs more gets another place, which later ones share."""
    of, sizes = made
    first, second = of.of_stream(7, 100), of.of_stream(8, 100)
    assert of.of_stream(7, 4) == of.of_stream(7, LEAST) == first
    assert abs(first - second) >= LEAST
    larger = of.of_stream(7, LEAST + 4)
    assert larger not in (first, second) and of.of_stream(7, 100) == larger
    assert sizes == [CHUNK]


def test_a_captured_call_has_its_own(made):
    """Each is given bytes that no stream and no other captured call has, as long as some are left."""
    of, sizes = made
    assert of.of_capture(4) is None
    of.reserve(4)
    places = sorted([of.of_capture(300) for _ in range(20)] + [of.of_stream(7, 4)])
    assert all(b - a >= 300 for a, b in zip(places, places[1:], strict=False))
    assert of.of_capture(CHUNK) is None
    of.reserve(CHUNK)
    assert of.of_capture(CHUNK) == 2 << 32 and sizes == [CHUNK, 2 * CHUNK]


def test_threads_are_never_given_one_place_for_two_streams(made):
    """Eight threads that ask at once get eight places."""
    of, _ = made
    found, ready = {}, threading.Barrier(8)

    def ask(stream):
        ready.wait()
        found[stream] = of.of_stream(stream, 64)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    assert len(set(found.values())) == 8


@pytest.mark.parametrize("capturing", [False, True])
@pytest.mark.parametrize("spec", ["atomic", "workspace", "stream_k", "dynamic"])
def test_a_run_is_handed_counters_of_its_stream_or_its_own(spec, capturing, made, monkeypatch):
    """One launch, with the place of its stream's calls; a captured call's place is never given again."""
    of, launched = made[0], []
    monkeypatch.setattr(
        launcher, "function_for", lambda config, index: lambda *args: launched.append((config, args))
    )
    monkeypatch.setattr(launcher, "_current_device", lambda: None)
    monkeypatch.setattr(launcher, "_current_stream", lambda index: 7)
    monkeypatch.setattr(launcher.tvm_ffi, "convert", tuple)
    monkeypatch.setattr(counters, "owner", lambda index: of)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    fields = (
        {"scheduler": spec} if spec in ("stream_k", "dynamic") else {"split_k": 2, "split_reduction": spec}
    )
    graph = linear_combination(False)
    signature = Signature(graph)
    a, b, out = (torch.zeros(x, dtype=torch.bfloat16) for x in ((64, 128), (128, 64), (64, 64)))
    given, numbers, scalars = signature.bind(a, b, {"alpha": 1.0}, out)
    order = signature.order(scalars)
    small = GemmSpec(tile=Tile(64, 64, 64), swap=False, **fields)
    kind = run.prepare(small, graph, order, given, "reference").kind
    made_for = launcher.Launcher(kind, order.request(order.named(given)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    for _ in range(2):
        made_for(given, tuple(x.data_ptr() for x in given), numbers, None)
    places = []
    for config, args in launched:
        by_name = layout_of(config).unpack(args[:-1])["addresses"]
        places.append(by_name[SPLIT_PLACES[1] if spec != "dynamic" else "work.counter"])
    assert len(places) == 2 and (places[0] == places[1]) is not capturing
