# SPDX-License-Identifier: Apache-2.0
"""`cutegemm ptx`, `sass` and `diff`: the kernel's code, and what really differs between two."""

import pytest

from cutegemm.cli.facts import comparison, machine_code
from cutegemm.compiling import resources
from cutegemm.errors import CompileError
from tests.support.command import document, refused, run

# a kernel that other tests compile
PROBLEM, SPEC = ("256", "128", "128"), ("--spec", "tile=(128, 64, 64)")


def test_ptx_is_the_kernel_s(tmp_path):
    """The text is printed or written, with what the compiled kernel uses and its instructions counted."""
    text = run("ptx", *PROBLEM, *SPEC)
    assert ".visible .entry" in text and "wgmma.mma_async" in text
    assert "lines written to" in run("ptx", *PROBLEM, *SPEC, "--out", tmp_path / "x.ptx")
    assert (tmp_path / "x.ptx").read_text().strip() == text.strip()
    found = document("ptx", *PROBLEM, *SPEC)
    assert found["text"].strip() == text.strip() and found["registers"] == 168
    assert any(name.startswith("wgmma.mma_async") for name in found["instructions"])


def test_sass_is_the_kernel_s():
    """nvdisasm's text, counted by opcode."""
    assert "HGMMA" in run("sass", *PROBLEM, *SPEC)
    assert any(x.startswith("HGMMA") for x in document("sass", *PROBLEM, *SPEC)["instructions"])


def test_the_code_of_groups():
    """--groups prints the kernel of `grouped_mm`, which differs from the dense one."""
    dense, grouped = (document("ptx", *PROBLEM, *SPEC, *more) for more in ((), ("--groups", 2)))
    assert grouped["problem"] == "256 x 128 x 128, 2 groups of rows" and dense["problem"] == "256 x 128 x 128"
    assert grouped["text"] != dense["text"] and ".visible .entry" in grouped["text"]


def test_a_launch_for_large_groups_makes_plans_differ():
    """Although the first kernels are equal."""
    asked = ("2048", "1536", "2048", "--groups", 128, "--no-emulate")
    fields = "tile=(64,192,64), cluster=(1,1), schedule='multistage', swap=False"
    assert not document("diff", "GemmSpec()", fields, *asked, status=1)["same"]


def test_an_empty_output_has_no_code():
    """There is no kernel where D is empty."""
    assert "D is empty: there is no kernel" in refused("ptx", 0, 8, 8)


def test_only_real_changes_show():
    """Names of registers, labels and predicates, comments and addresses do not count; opcodes and constants do."""
    one = "$L1:\n mov.b32 %r1, 5; // a\n@%p1 bra $L1;\n.loc 1 2\n add.s32 %r3, %r1, 1;"
    two = "$L2:\n mov.b32 %r7, 5;\n@%p9 bra $L2;\n add.s32 %r8, %r7, 1;"
    assert machine_code.compared(one, two, "ptx").lines == []
    changed = machine_code.compared(one, two.replace("add", "sub"), "ptx")
    assert changed.opcodes == {"add.s32": [1, 0], "sub.s32": [0, 1]}
    assert "-add.s32 %r, %r, 1" in changed.lines and "+sub.s32 %r, %r, 1" in changed.lines
    sass = "        /*0010*/                   IADD3 R1, R2, 0x4, RZ ;  /* 0x1 */"
    assert machine_code.normal(sass, "sass") == ["IADD3 R, R, 0x4, RZ"]
    assert machine_code.compared(sass, sass.replace("R1", "R9").replace("0010", "0020"), "sass").lines == []


def test_one_kernel_serves_both():
    """Specs that give one kernel end with status 0 and no tables."""
    text = run("diff", SPEC[1], "tile=(128,64,64), stages=8", *PROBLEM)
    assert text.endswith("both give the same kernel\n")


def test_two_kernels_differ():
    """Plan, resources, counters, PTX and SASS of both, and status 1."""
    words = ("diff", SPEC[1], SPEC[1] + ", schedule='pingpong'", 256, 256, 192)
    text = run(*words, "--code", status=1)
    for part in ("config.pingpong", "code_bytes", "PTX: ", "SASS: ", "HGMMA", "+++ after", "more lines"):
        assert part in text
    found = document(*words, status=1)
    plan = {x["name"]: (x["before"], x["after"]) for x in found["plan"]}
    assert plan["config.pingpong"] == ("False", "True")
    assert not found["same"] and [x["language"] for x in found["code"]] == ["ptx", "sass"]
    assert {x["name"] for x in found["counters"]} and found["time"] is None


def test_the_sides_of_a_difference_are_named():
    """An error names the side that is no spec; the problem shows both types where the specs have two."""
    assert refused("diff", "stages", "").startswith("cutegemm diff: SPEC1='stages'")
    assert refused("diff", "", "stages").startswith("cutegemm diff: SPEC2='stages'")
    words = ("a_dtype='fp16'", "a_dtype='bf16'", 64, 64, 64, "--no-emulate")
    assert document("diff", *words, status=1)["problem"] == "64 x 64 x 64; fp16 and bf16"


def test_the_traced_ir_is_compared(monkeypatch):
    """--ir traces both kernels: MLIR operations are counted, SSA names and addresses of objects do not count."""
    text = (
        "func.func @k_object_at_0x1() {\n  %0 = cute.make_tile(%arg0, %3#1) : tile\n  cute.wait %0 : tile\n}"
    )
    other = text.replace("0x1", "0x2").replace("%0", "%7").replace("%3#1", "%9#1")
    assert machine_code.compared(text, other, "ir").lines == []
    changed = machine_code.compared(text, other.replace("cute.wait", "cute.arrive"), "ir")
    assert changed.opcodes == {"cute.wait": [1, 0], "cute.arrive": [0, 1]}
    words = ("diff", SPEC[1], SPEC[1] + ", stages=4", *PROBLEM, "--no-emulate", "--no-time", "--ir")
    found = document(*words, status=1)
    assert [x["language"] for x in found["code"]] == ["ir", "ptx", "sass"]
    assert found["code"][0]["before"] > 100 and found["code"][0]["lines"]


def test_an_ir_that_fails_is_a_compile_error(monkeypatch):
    """What the process said last is in the error."""
    from cutegemm.compiling import ir
    from tests.support.compiled import CONFIG

    monkeypatch.setattr(ir.sys, "executable", "false")
    with pytest.raises(CompileError, match="the DSL gives no IR: no message"):
        ir.ir(CONFIG)


def test_a_large_problem_is_not_emulated(monkeypatch):
    """Counters are left out, with the reason, where emulating takes minutes; so is SASS without nvdisasm."""
    monkeypatch.setattr(resources, "nvdisasm", lambda: None)
    monkeypatch.setattr("cutegemm.cli.facts.emulation.MOST_FLOPS", 1000)
    words = ("diff", SPEC[1], SPEC[1] + ", schedule='pingpong'", 256, 256, 192)
    text = run(*words, status=1)
    assert "give a smaller M N K" in text and "SASS" not in text


def test_times_stand_beside_the_code(monkeypatch):
    """Where there is a GPU both are timed, and the verdict knows its noise."""
    rows = [
        comparison.Timed("first", 2.0, 0.01, 100.0, 1.5),
        comparison.Timed("second", 3.0, 0.01, 66.0, 1.0),
    ]
    found = comparison.Comparison("p", "a GPU", "v", rows, "first is faster")
    monkeypatch.setattr(comparison, "compared", lambda asked, against_torch: found)
    text = run("diff", SPEC[1], SPEC[1] + ", stages=4", *PROBLEM, "--no-emulate", status=1)
    assert (
        "time on a GPU" in text
        and "first is faster" in text
        and "counters" not in text.split("PTX")[0].split("\n")
    )


@pytest.mark.parametrize("words", [("nonsense", "x"), ("tile=(1, 2)", "")])
def test_specs_that_are_none_are_refused(words):
    """Either side is read as --spec is."""
    assert "cutegemm diff: " in refused("diff", *words)
