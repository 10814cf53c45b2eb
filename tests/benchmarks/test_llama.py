# SPDX-License-Identifier: Apache-2.0
"""The Llama benchmark: workloads on the CPU, tokens and peaks in rows, wrong models left out."""

import pytest
import torch

from benchmarks import llama, results, timing
from benchmarks.llama import MODELS, WORKS, Bench, Scenario
from benchmarks.results import Measurement

pytest.importorskip("transformers")

QUICK = timing.Regime(name="sustained", preheat=0.0, rest=0.0, sample=1e-4, rounds=2)


@pytest.mark.parametrize("work", ["prefill", "decode1", "train"])
def test_a_workload_runs_and_is_right_on_the_cpu(work):
    """torch and the converted model on a tiny Llama: hidden states and gradients agree, times are rows, and kept."""
    kept = []
    bench = Bench(QUICK, None, names=("torch", "cutegemm"), memory="cpu", keep=kept.append)
    scenario = Scenario("tiny", work, scale=128)
    found, failures = bench.measure(scenario)
    assert not failures
    assert [row["contender"] for row in found] == ["torch", "cutegemm"] and kept[1:] == [found]
    for row, key in zip(found, bench.keys(scenario), strict=True):
        assert tuple(row) == results.LLAMA_FIELDS and results.key(row) == results.key(key)
        assert row["tokens_s"] == pytest.approx(row["m"] / row["us"] * 1e6) and row["peak_mib"] is None


def test_a_model_that_computes_something_else_is_not_timed(monkeypatch):
    """A converted model whose weights differ is found, and the others are measured."""
    convert = llama.nn.convert

    def wrong(model, **options):
        convert(model, **options)
        model.layers[1].mlp.down_proj.weight.data.mul_(1.5)

    monkeypatch.setattr(llama.nn, "convert", wrong)
    bench = Bench(QUICK, None, names=("torch", "cutegemm"), memory="cpu")
    found, failures = bench.measure(Scenario("tiny", "prefill", scale=512))
    assert [row["contender"] for row in found] == ["torch"]
    assert [name for name, _ in failures] == ["cutegemm"] and "of hidden" in failures[0][1]


def test_who_is_measured_alone_is_held_to_torch_too(monkeypatch, capsys):
    """Where torch is none of the contenders, in the command as well, whose --contenders hold without a GPU, too."""
    convert = llama.nn.convert

    def wrong(model, **options):
        convert(model, **options)
        model.layers[1].mlp.down_proj.weight.data.mul_(1.5)

    command = [
        "--out",
        "x",
        "--commit",
        "c",
        "--models",
        "tiny",
        "--works",
        "decode1",
        "--contenders",
        "cutegemm",
    ]
    monkeypatch.setattr(llama.torch.cuda, "is_available", lambda: False)
    assert llama.main(command) == 0
    assert "cutegemm " in (said := capsys.readouterr().out) and "torch " not in said
    monkeypatch.setattr(llama.nn, "convert", wrong)
    assert llama.main(command) == 1
    assert "tiny decode1 cutegemm: NOT TIMED: WrongResult" in capsys.readouterr().out


def test_rows_are_kept_after_every_contender_and_none_begins_late():
    """With whom it was measured beside so far; out of time the rest is left, and said to be."""
    kept = []
    names = ("torch", "cutegemm", "torch_compile")
    bench = Bench(QUICK, None, compiler=lambda x: x, names=names, memory="cpu", keep=kept.append)
    found, failures = bench.measure(Scenario("tiny", "decode1", scale=128))
    assert [len(rows) for rows in kept] == [1, 2, 3] and kept[-1] == found and not failures
    late = Bench(QUICK, None, names=names, memory="cpu", seconds=-1.0)
    assert late.measure(Scenario("tiny", "decode1", scale=128)) == (
        [],
        [(name, "no time was left") for name in names],
    )


def test_who_cannot_be_timed_is_left_out(monkeypatch):
    """A contender that dies while it is timed leaves the rows of the others."""
    measure = timing.measure

    def dies(contenders, *rest, **more):
        if contenders[-1].name == "cutegemm":
            raise RuntimeError("operation not permitted when stream is capturing")
        return measure(contenders, *rest, **more)

    monkeypatch.setattr(llama.timing, "measure", dies)
    bench = Bench(
        QUICK, None, compiler=lambda x: x, names=("torch", "cutegemm", "torch_compile"), memory="cpu"
    )
    found, failures = bench.measure(Scenario("tiny", "decode1", scale=128))
    assert [row["contender"] for row in found] == ["torch", "torch_compile"]
    assert failures == [("cutegemm", "RuntimeError: operation not permitted when stream is capturing")]


def test_tokens_and_memory_are_told():
    """Tokens a second are of the whole batch; peaks are in MiB."""
    times = {"torch": Measurement(us=1000.0, us_min=1.0, us_max=2.0, rounds=8)}
    (row,) = llama.rows(Scenario("8b", "decode32"), times, {"torch": 3.0}, "sustained")
    assert row["tokens_s"] == 32_000 and row["peak_mib"] == 3.0
    assert "8b decode32" in llama.describe(row) and "3.0 MiB" in llama.describe(row)


def test_the_models_are_those_they_are_named_after():
    """70b/8 is an eighth of the heads and of the perceptron; a training step has whole sequences."""
    large = MODELS["70b/8"]
    assert large["num_attention_heads"] * 8 == 64 and large["intermediate_size"] * 8 == 28672
    assert WORKS["decode32"].batch == 32 and WORKS["train"].train and not WORKS["prefill"].decode
    args = llama.parse(["--out", "x.json", "--commit", "c"])
    assert args.models == ["8b", "70b/8"] and torch.bfloat16 is llama.DTYPE
