# SPDX-License-Identifier: Apache-2.0
"""`diff`, `bench` and `tune` with --groups: compared and timed as `grouped_mm` runs them, and not tuned."""

import itertools

import pytest
import torch

from cutegemm.cli.facts import comparison
from cutegemm.cli.inputs import case
from cutegemm.tuning.race import Regime
from tests.support.command import document, refused, run
from tests.support.fake_bench import FakeBench

# kernels of groups that other tests compile
PROBLEM, SPEC = (256, 128, 128), "tile=(128, 64, 64)"
GROUPS = ("--groups", 2)
QUICK = Regime(preheat=0.0, sample=1e-4, pairs=5)


def fake(backend="reference"):
    """A GPU on which kernels with 4 stages take twice the time."""
    return FakeBench(lambda plan: 2e-6 if plan and plan.config.stages == 4 else 1e-6, backend)


def test_two_kernels_of_groups_differ():
    """`diff` compares the kernels, counters and code of `grouped_mm`."""
    words = ("diff", SPEC, f"{SPEC}, schedule='pingpong'", *PROBLEM, *GROUPS)
    found = document(*words, status=1)
    assert found["problem"] == "256 x 128 x 128, 2 groups of rows; bf16"
    plan = {x["name"]: (x["before"], x["after"]) for x in found["plan"]}
    assert plan["config.pingpong"] == ("False", "True") and not found["same"]
    assert found["counters"] and found["counters_note"] == ""
    assert "needs minutes" not in found["time_note"] and "Hopper GPU" in found["time_note"]


def test_one_kernel_of_groups_is_the_same():
    """Specs that give one kernel of groups end with status 0."""
    text = run("diff", SPEC, f"{SPEC}, swap=False", *PROBLEM, *GROUPS, "--no-emulate")
    assert text.endswith("both give the same kernel\n")


def test_groups_count_once_for_the_emulator(monkeypatch):
    """The limit of `diff` is that of `emulate`: rows of all groups count once, not once a group."""
    monkeypatch.setattr("cutegemm.cli.facts.emulation.MOST_FLOPS", 2 * 256 * 128 * 128)
    words = ("diff", SPEC, f"{SPEC}, schedule='pingpong'", *PROBLEM, *GROUPS, "--no-time")
    assert document(*words, status=1)["counters_note"] == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("bench", 64, 64, 64, *GROUPS), "times are taken on a Hopper GPU"),
        (("bench", 64, 64, 64, *GROUPS, "--batch", 2), "--batch=2: groups lie in one matrix"),
        (("bench", 64, 64, 64, "--along", "k"), "--along='k': needs --groups"),
        (("bench", 0, 64, 64, *GROUPS), "groups without elements run no kernel"),
        (("bench", 64, 64, 64, *GROUPS, "--spec", "split_k=2"), "split_k=2: groups take persistent kernels"),
        (("diff", "", "", 64, 64, 64, *GROUPS, "--batch", 2), "--batch=2: groups lie in one matrix"),
        (("diff", "", "", 64, 64, 64, "--along", "n"), "--along='n': needs --groups"),
        (("tune", 64, 64, 64, "--groups", 8), "cutegemm tune: --groups=8: tune measures kernels of build"),
        (("tune", 64, 64, 64, "--groups", 0), "--groups=0: tune measures kernels of build"),
        (("tune", 64, 64, 64, "--along", "k"), "--along='k': tune measures kernels of build"),
    ],
)
def test_what_is_refused_with_groups(words, says):
    """Rules are those of `explain --groups`; a GPU is needed to time; nothing is tuned."""
    assert says in refused(*words)


def test_tune_says_what_is_possible_for_groups():
    """The error names the commands that time groups, and the fields to set."""
    said = refused("tune", 64, 64, 64, *GROUPS)
    assert "`cutegemm bench --groups`" in said and "tile, cluster, schedule, stages and swap" in said
    assert "--groups" not in run("tune", "--help")


def test_kernels_of_groups_are_timed():
    """The faster spec is said to be; TFLOP/s are those of all rows, each of which is in one group."""
    both = {
        "ours": case(PROBLEM, SPEC, groups=2),
        "other": case(PROBLEM, f"{SPEC}, stages=4", groups=2),
    }
    found = comparison.compared(both, fake("emulator"), QUICK, against_torch=False)
    assert found.verdict == "ours is faster" and found.problem == "256 x 128 x 128, 2 groups of rows; bf16"
    assert found.rows[0].tflops == pytest.approx(2 * 256 * 128 * 128 / 1e6)


def test_torch_has_no_groups_of_some_types():
    """Its function has kernels for bf16 in aligned rows; for other types it would wait for the ends."""
    cases = {comparison.OURS: case(PROBLEM, SPEC, groups=2, dtype="fp16")}
    found = comparison.compared(cases, fake("emulator"), QUICK)
    assert [x.name for x in found.rows] == [comparison.OURS]
    assert found.verdict == "torch.nn.functional.grouped_mm does not compute this problem"
    assert not comparison.torch_calls(case((64, 64, 60), groups=2), "cpu")


def of_each(form, a, b, d, ends):
    """(A, B, D) of each group."""
    for group, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        part = slice(start, end)
        if form == "m":
            yield a[part], b[group], d[part]
        elif form == "n":
            yield a[group], b[:, part], d[:, part]
        else:
            yield a[:, part], b[part], d[group]


@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize("along", ["m", "n", "k"])
def test_what_is_timed_multiplies_groups(along, groups):
    """A call computes alpha A B of every group, and so does torch's; every row is in a group, whose sizes differ."""
    asked = case((96, 64, 80), groups=groups, along=along)
    prepared, sets = comparison._of_groups(asked, fake())
    assert len(sets) == comparison.SETS
    others = comparison.torch_calls(asked, "cpu")
    for x, other in zip(sets, others, strict=True):
        named = prepared.kind.order.named(x.given)
        ends = x.given[-1]
        assert int(ends[-1]) == {"m": 96, "n": 64, "k": 80}[along] and len(ends) == groups
        x.poison()
        d = prepared(x.given, x.places, x.numbers, None)
        for a, b, found in of_each(along, named["a"], named["b"], d, ends):
            torch.testing.assert_close(found.float(), 0.5 * a.float() @ b.float(), rtol=0.02, atol=0.1)
        torch.testing.assert_close(0.5 * other().float(), d.float(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    "words",
    [
        {"epilogue": "bias_act(relu)"},
        {"epilogue": "residual"},
        {"spec": "a_dtype='fp8', b_dtype='fp8', scale_a='row', scale_b='row'", "majors": "kk"},
        {"spec": "a_dtype='fp8', scale_a=('block', 1, 128), scale_b=('block', 128, 128)", "majors": "kk"},
        {"spec": "d_dtype='fp32'", "majors": "mk"},
    ],
)
def test_epilogues_of_groups_are_timed(words, groups):
    """A call of groups is given what its epilogue reads."""
    prepared, sets = comparison._of_groups(case((64, 128, 128), groups=groups, **words), fake())
    assert torch.isfinite(prepared(sets[0].given, sets[0].places, sets[0].numbers, None).float()).all()


def test_two_types_are_timed():
    """Each spec is timed on operands of its own types."""
    both = {x: case((64, 64, 64), f"a_dtype='{x}'") for x in ("fp16", "bf16")}
    assert comparison.compared(both, fake(), QUICK, against_torch=False).verdict == "no difference"
