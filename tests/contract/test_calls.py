# SPDX-License-Identifier: Apache-2.0
"""Sequences of calls on one `Gemm`, whatever changes from call to call; `python -m tests.contract SEED` runs one."""

import collections

import pytest

from cutegemm.running.backends import emulated
from tests.support.contract import Sequence, run_seed
from tests.support.profile import cases

SEEDS = cases(50, 2_000)
MOST_KERNELS = 100


@pytest.mark.sliced
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_call_keeps_the_contract(seed):
    """Right results or a refusal that names the argument; nothing around an output is written; no races."""
    run_seed(seed)


def test_many_calls_share_few_kernels(monkeypatch):
    """1,000 calls run (20,000 in the long profile), of every kind enough, with at most 100 kernels."""
    kernels, kinds = set(), collections.Counter()

    def recorded(self, *_):
        kernels.update(step.config for step in self.kind.plan.steps)
        return []

    monkeypatch.setattr(emulated.Emulated, "_steps", recorded)
    monkeypatch.setattr(emulated, "run_steps", lambda *_, **__: None)
    for seed in range(100):
        sequence = Sequence(seed)
        for call in sequence.calls():
            kinds[call.backend] += call.refused is None
            kinds["wrong"] += call.refused is not None
            kinds["on meta"] += call.text.startswith("on meta")
            kinds["in place"] += call.named.get("out") is not None and call.named.get(
                "out"
            ) is call.named.get("c")
            kinds["fused"] += sequence.graph is not None
            if call.backend == "emulator" and call.refused is None:
                sequence.gemm.run(*call.args, backend="emulator", **call.named)
    assert 30 <= len(kernels) <= MOST_KERNELS, len(kernels)
    assert all(kinds[x] >= 160 for x in (None, "reference", "emulator")), kinds
    assert (
        kinds["wrong"] >= 100 and kinds["on meta"] >= 50 and kinds["in place"] >= 50 and kinds["fused"] >= 330
    ), kinds
