# SPDX-License-Identifier: Apache-2.0
"""Decode chains: each layer reads what the one before it wrote, times are a layer's, the roof is of the same run."""

import pytest
import torch
from rich.console import Console

from benchmarks import chain, correctness, results, runs, table, timing
from benchmarks.chain import Chain
from benchmarks.results import Measurement, Results
from benchmarks.suites import CHAIN_BYTES, CHAINS
from benchmarks.timing import Contender
from tests.support.fake_gpu import ENVIRONMENT, FakeGpu

SMALL = Chain(((48, 32), (32, 48)), m=4, weight_bytes=6 * 48 * 32 * 2)
REGIME = timing.Regime(name="sustained", preheat=0.0, rest=0.0, sample=1e-3, rounds=4)
SECONDS = {"cutegemm": 6e-6, "cublas": 12e-6, "read": 3e-6}  # of a whole chain


@pytest.mark.parametrize("layers", CHAINS)
def test_weights_are_more_than_l2_holds(layers):
    """The chain repeats its layers until there are 1.5 GB of weights, and no layer more than that takes."""
    whole = Chain(layers, m=16)
    total = sum(n * k for n, k in whole.shapes) * 2
    assert CHAIN_BYTES <= total < CHAIN_BYTES + sum(n * k for n, k in layers) * 2
    assert whole.depth % len(layers) == 0 and whole.layer_bytes * whole.depth == total


def test_layers_share_one_piece_of_memory_and_keep_the_variance():
    """Weights are views of one tensor, which the roof reads whole; outputs neither vanish nor grow."""
    operands = chain.make_operands(SMALL, "cpu")
    assert [tuple(weight.shape) for weight in operands.weights] == [(48, 32), (32, 48)] * 3
    assert operands.flat.numel() == sum(weight.numel() for weight in operands.weights)
    assert operands.weights[1].data_ptr() == operands.flat.data_ptr() + 48 * 32 * 2
    chain.check(chain.make("cublas", SMALL, chain.spec(constant=True)), operands)
    assert 0.3 < operands.outputs[-1].float().std() < 3


def test_our_chain_is_right_on_the_cpu():
    """Our contender runs every layer through its own kernel and names their plans."""
    contender = chain.make("cutegemm", SMALL, chain.spec(constant=False))
    chain.check(contender, chain.make_operands(SMALL, "cpu"))
    assert contender.plan.count(" | ") == 1


def _early(operands):
    """Runs the chain as if each layer had read its input before it was written."""
    before = [out.clone() for out in operands.outputs]
    for x, weight, out in zip([operands.x, *before], operands.weights, operands.outputs, strict=False):
        out.copy_(x @ weight.T)


def _last_layer_left_out(operands):
    x = operands.x
    for weight, out in zip(operands.weights[:-1], operands.outputs[:-1], strict=True):
        out.copy_(x @ weight.T)
        x = out


@pytest.mark.parametrize(("call", "layer"), [(_early, 1), (_last_layer_left_out, 5)])
def test_wrong_layer_is_found(call, layer):
    """A layer that read too early, or did not run, is named."""
    with pytest.raises(correctness.WrongResult, match=f"^layer {layer}: "):
        chain.check(Contender("cutegemm", call), chain.make_operands(SMALL, "cpu"))


@pytest.fixture
def bench(monkeypatch):
    """A bench on a fake GPU; ours takes half of cuBLAS's time and twice that of reading."""
    gpu, real = FakeGpu(), chain.make

    def make(name, what, declared):
        inner = real("cublas" if name == "cutegemm" else name, what, declared)
        return gpu.costing(Contender(name, inner.call), SECONDS[name])

    monkeypatch.setattr(chain, "make", make)
    return chain.Bench(REGIME, None, device=gpu, memory="cpu")


def test_times_are_of_a_layer_and_the_roof_of_the_same_run(bench):
    """A row's time is the chain's over its layers, its speed the weights' bytes over that, beside the reader's."""
    rows, failures = bench.measure(SMALL)
    assert failures == [] and [row["contender"] for row in rows] == ["cutegemm", "cublas"]
    ours, cublas = rows
    assert ours["us"] == pytest.approx(1.0) and cublas["us"] == pytest.approx(2.0)
    assert ours["ratio"] == pytest.approx(2.0) and ours["samples"] == pytest.approx([1.0] * 4)
    assert ours["gb_s"] == pytest.approx(48 * 32 * 2 / 1e-6 / 1e9)
    assert ours["of_roof"] == pytest.approx(0.5) and ours["roof_gb_s"] == pytest.approx(2 * ours["gb_s"])
    assert tuple(ours) == results.CHAIN_FIELDS
    assert [results.key(row) for row in rows] == [results.key(row) for row in bench.keys(SMALL)]
    assert "1.00 us a layer" in chain.describe(ours) and "50.0% of the read roof" in chain.describe(ours)


def test_run_writes_and_goes_on(bench, tmp_path):
    """Rows of chains are written, read back and not measured twice; M tells them apart."""
    chains = [SMALL, Chain(SMALL.layers, 1, SMALL.weight_bytes)]

    def go(todo):
        out = Results(tmp_path / "chain.json", ENVIRONMENT)
        return runs.run(todo, bench, out, seconds=1e9, console=Console(), describe=chain.describe)

    assert go(chains[:1]).measured == 1
    assert (go(chains).skipped, go(chains).skipped) == (1, 2)
    assert [row["m"] for row in results.load(tmp_path / "chain.json")["rows"]] == [4, 4, 1, 1]


def test_a_wrong_contender_is_not_timed(bench, monkeypatch):
    """Ours wrong leaves cuBLAS's row, and the reason."""
    make = chain.make
    monkeypatch.setattr(
        chain,
        "make",
        lambda name, *more: Contender(name, _early) if name == "cutegemm" else make(name, *more),
    )
    rows, failures = bench.measure(SMALL)
    assert [row["contender"] for row in rows] == ["cublas"] and failures[0][1].startswith("layer 1:")


def test_weights_are_declared_constant_where_specs_can_say_so():
    """The declaration is made as soon as `GemmSpec` has the field, and never when it is not wanted."""
    fields = chain.GemmSpec.__dataclass_fields__
    assert getattr(chain.spec(constant=True), "constant", ()) == (("b",) if "constant" in fields else ())
    assert chain.spec(constant=False) == chain.GemmSpec()


def test_readme_table_of_chains():
    """A line a chain and M: time, speed, share of the roof, cuBLAS."""
    times = {name: Measurement(us=s * 1e6, us_min=1, us_max=1, rounds=1) for name, s in SECONDS.items()}
    rows = chain.rows(SMALL, times, plans={}, regime="sustained")
    text = table.render("chain", {"c.json": {"environment": ENVIRONMENT, "rows": rows}})
    assert "| 48×32-32×48 | 4 | 1.00 | 0.00 | 50% | 2.00 | **2.00** |" in text


def test_command_line(capsys):
    """All chains at three M by default; an unknown chain and a wrong M are refused."""
    words = ["--out", "f.json", "--commit", "abc"]
    args = chain.parse(words)
    assert args.chains == ["4096x4096", "7168x7168", "14336x4096-4096x14336", "10240x8192-8192x10240"]
    assert (args.rows, args.undeclared, args.seconds) == ([1, 16, 32], False, float("inf"))
    assert chain.parse([*words, "--chains", "7168x7168", "--rows", "1,2"]).rows == [1, 2]
    for more, message in (
        (["--chains", "1x1"], "1x1: must be among 4096x4096"),
        (["--rows", "0"], "'0': must be whole"),
    ):
        with pytest.raises(SystemExit):
            chain.parse([*words, *more])
        assert message in capsys.readouterr().err


@pytest.mark.gpu
def test_on_the_gpu(tmp_path):
    """A short chain is right and timed on a GPU, faster than the roof by no contender."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    rows, failures = chain.Bench(REGIME, None).measure(Chain(((4096, 4096),), 16, 2**28))
    assert failures == [] and len(rows) == 2
    assert all(0.1 < row["of_roof"] < 1.2 for row in rows)
