# SPDX-License-Identifier: Apache-2.0
"""Models at work: workloads on the CPU, tokens and peaks in rows, wrong models left out."""

import pytest
import torch

from benchmarks import model_cases, models, results, runs, timing
from benchmarks.model_cases import FAMILIES, MODELS, WORKS, Scenario
from benchmarks.models import Bench
from benchmarks.results import Measurement

pytest.importorskip("transformers")

QUICK = timing.Regime(name="sustained", preheat=0.0, rest=0.0, sample=1e-4, rounds=2)


CASES = [
    (f"tiny_{family}", work)
    for family in FAMILIES
    for work in ("prefill", "decode16", "train")
    if Scenario(f"tiny_{family}", work).possible
]


@pytest.mark.sliced
@pytest.mark.parametrize(("model", "work"), CASES)
def test_a_workload_runs_and_is_right_on_the_cpu(model, work):
    """torch and the converted model, joined and not: hidden states and gradients agree, times are rows, and kept."""
    kept = []
    names = ("torch", "cutegemm", "cutegemm_plain")
    bench = Bench(QUICK, None, names=names, memory="cpu", keep=kept.append)
    scenario = Scenario(model, work, scale=128)
    found, failures = bench.measure(scenario)
    assert not failures
    assert tuple(row["contender"] for row in found) == names and kept[-1] == found
    for row, key in zip(found, bench.keys(scenario), strict=True):
        assert tuple(row) == results.LLAMA_FIELDS and results.key(row) == results.key(key)
        assert row["tokens_s"] == pytest.approx(row["m"] / row["us"] * 1e6) and row["peak_mib"] is None


def test_every_scenario_is_compiled_and_one_that_is_not_fails(monkeypatch):
    """torch compiles a function so many times and then runs it uncompiled; models of transformers share one."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    names = models.DEFAULT_MODE
    bench = Bench(QUICK, None, names=names, memory="cpu", default=lambda x: torch.compile(x, backend=backend))
    with torch._dynamo.config.patch(recompile_limit=len(names)):
        for work in ("prefill", "one"):
            found, failures = bench.measure(Scenario("tiny_bert", work, scale=128))
            assert not failures and len(found) == len(compiled) == len(names)
            compiled.clear()
        monkeypatch.setattr(models, "compiled_anew", lambda: None)
        found, failures = bench.measure(Scenario("tiny_bert", "prefill", scale=64))
    assert not found and [name for name, _ in failures] == list(names) and "recompile_limit" in failures[0][1]


def test_a_model_that_computes_something_else_is_not_timed(monkeypatch):
    """A converted model whose weights differ is found, and the others are measured."""
    convert = model_cases.nn.convert

    def wrong(model, **options):
        convert(model, **options)
        model.layers[1].mlp.down_proj.weight.data.mul_(1.5)

    monkeypatch.setattr(model_cases.nn, "convert", wrong)
    bench = Bench(QUICK, None, names=("torch", "cutegemm"), memory="cpu")
    found, failures = bench.measure(Scenario("tiny_llama", "prefill", scale=512))
    assert [row["contender"] for row in found] == ["torch"]
    assert [name for name, _ in failures] == ["cutegemm"] and "of hidden" in failures[0][1]


def test_who_is_measured_alone_is_held_to_torch_too(monkeypatch, capsys):
    """Where torch is none of the contenders, in the command as well, whose --contenders hold without a GPU, too."""
    convert = model_cases.nn.convert

    def wrong(model, **options):
        convert(model, **options)
        model.layers[1].mlp.down_proj.weight.data.mul_(1.5)

    command = [
        "--out",
        "x",
        "--commit",
        "c",
        "--models",
        "tiny_llama",
        "--works",
        "decode1",
        "--contenders",
        "cutegemm",
    ]
    monkeypatch.setattr(models.torch.cuda, "is_available", lambda: False)
    assert models.main(command) == 0
    assert "cutegemm " in (said := capsys.readouterr().out) and "torch " not in said
    monkeypatch.setattr(model_cases.nn, "convert", wrong)
    assert models.main(command) == 1
    assert "tiny_llama decode1 cutegemm: NOT TIMED: WrongResult" in capsys.readouterr().out


def test_rows_are_kept_after_every_contender_and_none_begins_late():
    """With whom it was measured beside so far; out of time the rest is left, and said to be."""
    kept = []
    names = ("torch", "cutegemm", "torch_compile")
    bench = Bench(QUICK, None, compiler=lambda x: x, names=names, memory="cpu", keep=kept.append)
    found, failures = bench.measure(Scenario("tiny_llama", "decode1", scale=128))
    assert [len(rows) for rows in kept] == [1, 2, 3] and kept[-1] == found and not failures
    late = Bench(QUICK, None, names=names, memory="cpu", seconds=-1.0)
    assert late.measure(Scenario("tiny_llama", "decode1", scale=128)) == (
        [],
        [(name, "no time was left") for name in names],
    )


def test_two_ways_of_compiling():
    """Each contender's model is compiled in its own mode, once, and compared with torch's in the same mode."""
    seen = []
    modes = {x: (lambda model, x=x: seen.append(x) or model) for x in ("compiler", "default")}
    names = ("torch", "torch_default", "cutegemm_default", "torch_compile", "cutegemm_compile")
    bench = Bench(QUICK, None, names=names, memory="cpu", **modes)
    found, failures = bench.measure(Scenario("tiny_llama", "decode1", scale=128))
    assert not failures and seen == ["default", "default", "compiler", "compiler"]
    us = {row["contender"]: row["us"] for row in found}
    ratios = results.compiled_ratios(found)
    assert ratios == {
        ("tiny_llama decode1", QUICK.name, x): us[f"torch_{x}"] / us[f"cutegemm_{x}"]
        for x in ("compile", "default")
    }


def test_who_cannot_be_timed_is_left_out(monkeypatch):
    """A contender that dies while it is timed leaves the rows of the others."""
    measure = timing.measure

    def dies(contenders, *rest, **more):
        if contenders[-1].name == "cutegemm":
            raise RuntimeError("operation not permitted when stream is capturing")
        return measure(contenders, *rest, **more)

    monkeypatch.setattr(models.timing, "measure", dies)
    bench = Bench(
        QUICK, None, compiler=lambda x: x, names=("torch", "cutegemm", "torch_compile"), memory="cpu"
    )
    found, failures = bench.measure(Scenario("tiny_llama", "decode1", scale=128))
    assert [row["contender"] for row in found] == ["torch", "torch_compile"]
    assert failures == [("cutegemm", "RuntimeError: operation not permitted when stream is capturing")]


def test_tokens_and_memory_are_told():
    """Tokens a second are of the whole batch; peaks are in MiB."""
    times = {"torch": Measurement(us=1000.0, us_min=1.0, us_max=2.0, rounds=8)}
    (row,) = models.rows(Scenario("llama_8b", "decode32"), times, {"torch": 3.0}, "sustained")
    assert row["tokens_s"] == 32_000 and row["peak_mib"] == 3.0
    assert "llama_8b decode32" in models.describe(row) and "3.0 MiB" in models.describe(row)


def test_the_models_are_those_they_are_named_after():
    """Sizes are the public configs'; 70b/8 is an eighth of the heads and of the perceptron; encoders do not decode."""
    large = MODELS["llama_70b/8"][1]
    assert large["num_attention_heads"] * 8 == 64 and large["intermediate_size"] * 8 == 28672
    sizes = {name: (x["hidden_size"], x["intermediate_size"]) for name, (_, x) in MODELS.items()}
    assert sizes["qwen3_4b"] == (2560, 9728) and sizes["gpt_neox_7b"] == (4096, 16384)
    assert sizes["vit_h"] == (1280, 5120) and sizes["bert_large"] == (1024, 4096)
    assert WORKS["decode16"].batch == 16 and WORKS["train"].train and not WORKS["prefill"].decode
    args = models.parse(["--out", "x.json", "--commit", "c"])
    found = {str(x) for x in models.scenarios(args)}
    assert {"qwen3_4b decode16", "vit_h one", "bert_large train"} <= found and "vit_h decode1" not in found
    assert {x.split()[0] for x in found} == {name for name in MODELS if not name.startswith("tiny")}
    assert torch.bfloat16 is model_cases.DTYPE


def test_inputs_of_encoders_have_about_the_tokens_of_the_work():
    """Images have 257 tokens each, sequences of BERT at most 512; decoders keep batch and tokens."""
    shapes = {
        x: Scenario(*x.split()).shape
        for x in ("vit_h one", "vit_h prefill", "bert_large train", "qwen3_4b train")
    }
    assert {x: (y.batch, y.tokens) for x, y in shapes.items()} == {
        "vit_h one": (1, 257),
        "vit_h prefill": (7, 257),
        "bert_large train": (8, 512),
        "qwen3_4b train": (2, 2048),
    }


def test_kernels_are_compiled_without_a_gpu(monkeypatch, capsys):
    """Those of converted models, compiled by torch or not; torch's own launch none, and nothing is measured."""
    wanted = []
    monkeypatch.setattr(runs.kernel_cache, "ensure", wanted.extend)
    command = ["--compile-only", "--models", "tiny_llama", "--works", "decode1,train", "--contenders"]
    found = {}
    for names in ("torch", "cutegemm", "cutegemm_default", "cutegemm_fp8_compile,torch"):
        wanted.clear()
        assert models.main([*command, names]) == 0
        found[names] = set(wanted)
        assert f"{len(wanted)} kernels of 2 problems" in capsys.readouterr().out
    assert not found["torch"] and found["cutegemm"] and found["cutegemm"] == found["cutegemm_default"]
    # fp8 does not train
    assert {x.a.dtype.bits for x in found["cutegemm"] if hasattr(x, "a")} == {16}
    assert any(x.a.dtype.bits == 8 for x in found["cutegemm_fp8_compile,torch"] if hasattr(x, "a"))
