# SPDX-License-Identifier: Apache-2.0
"""README tables from results files."""

from pathlib import Path

import pytest

from benchmarks import fresh_check, occupied, probe_tables, results, table
from benchmarks.results import Case, Measurement

README = """# T
<!-- benchmark:odd -->
old
<!-- /benchmark:odd -->
text
<!-- benchmark:summary -->
<!-- /benchmark:summary -->
"""


def document(us: float = 10.0, date: str = "2026-01-02", suite: str = "odd") -> dict:
    """A results document of one problem."""
    case = Case(suite=suite, dtype="bf16", majors="kk", m=127, n=4099, k=513)
    times = {
        name: Measurement(us=t, us_min=t, us_max=t, rounds=3)
        for name, t in (("cutegemm", us), ("cublas", 35.0))
    }
    environment = {"gpu": "H200", "torch": "2.11", "date": f"{date}T10:00:00", "commit": "0123456789abcdef"}
    rows = results.case_rows(case, times, plans={}, regime="sustained", baseline="cublas")
    return {"schema": 1, "environment": environment, "rows": rows}


def test_suite_table_in_full():
    """A suite's table has a line a problem and says where its figures come from."""
    assert table.render("odd", {"benchmarks/results/r.json": document()}) == (
        "| M×N×K | dtype | majors | regime | µs | TFLOP/s | cuBLAS µs | × cuBLAS |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| 127×4099×513 | bf16 | kk | sustained | 10.0 | 53 | 35.0 | **3.50** |\n"
        "\n"
        "Measured: [r.json](benchmarks/results/r.json) (H200, torch 2.11, 2026-01-02, commit 0123456789).\n"
    )


def test_summary_table_has_the_geometric_mean():
    """The summary has a line a suite with its mean and extremes."""
    other = document(us=70.0, suite="small")
    text = table.render("summary", {"a.json": document(), "b.json": other})
    assert "| odd | bf16 | kk | sustained | 1 | **3.50** | 3.50 | 3.50 |" in text
    assert "| small | bf16 | kk | sustained | 1 | **0.50** | 0.50 | 0.50 |" in text
    assert "[a.json](a.json)" in text and "[b.json](b.json)" in text


def test_another_gpus_results_have_tables_of_their_own():
    """Files of its folder, and of no other; a folder must be known."""
    here, there = {"r/a.json": document()}, {"r/h100/a.json": document(us=70.0)}
    assert "| **3.50** |" in table.render("summary", here | there)
    assert "| **0.50** |" in table.render("summary-h100", here | there)
    with pytest.raises(table.NoRows, match="'summary-h100'"):
        table.render("summary-h100", here)
    with pytest.raises(ValueError, match="'summary-h200': must be brief, .* -h100"):
        table.render("summary-h200", here)


def test_host_table_in_units_for_readers():
    """A call is in microseconds, a compile in seconds."""
    rows = []
    for what, us in (("call", 7.25), ("first_kernel", 2.5e6)):
        measured = {"cutegemm": Measurement(us=us, us_min=us / 2, us_max=us * 2, rounds=3)}
        rows += results.host_rows(what, measured, "cublas")
    text = table.render("host", {"h.json": document() | {"rows": rows}})
    assert "| one call, 256³ | cutegemm | 7.25 µs | 3.62 to 14.50 |" in text
    assert "| first kernel of a spec | cutegemm | 2.50 s | 1.25 to 5.00 |" in text


def test_llama_table_has_tokens_ratio_and_memory():
    """A line a model at work; the ratio is that of the compiled ones; what is missing stays empty."""
    rows = []
    for what, speeds in (
        ("8b decode1", {"torch": 1.5, "torch_compile": 2.0, "cutegemm_compile": 3.0}),
        ("8b train", {"torch": 7.0}),
    ):
        for name, speed in speeds.items():
            row = dict.fromkeys(results.LLAMA_FIELDS)
            row |= {
                "suite": "llama",
                "what": what,
                "regime": "sustained",
                "contender": name,
                "us": 6.0 / speed,
                "tokens_s": speed * 1e3,
            }
            rows.append(row | {"peak_mib": 1234.5})
    # the same from the host has lines of its own
    slow = rows[1] | {"regime": "from_host", "us": 30.0, "tokens_s": 200.0}
    text = table.render("llama", {"l.json": document() | {"rows": [*rows, slow]}})
    assert "| 8b decode1 | 1,500 | 2,000 |  | 3,000 | **1.50** | 1,234 | 1,234 |" in text
    assert "| 8b train | 7,000 |  |  |  |  |  |  |" in text


def test_newest_row_wins_whatever_the_file_is_called():
    """If two files have a row for the same case, the table has the later one and names its file alone."""
    documents = {"a.json": document(us=5.0, date="2026-01-09"), "b.json": document(us=10.0)}
    text = table.render("odd", documents)
    assert "**7.00**" in text and "**3.50**" not in text and "b.json" not in text


def test_fill_replaces_between_markers_only_and_settles():
    """Text around the markers stays, and filling a filled README changes nothing."""
    documents = {"r.json": document()}
    once = table.fill(README, documents)
    assert once.startswith("# T\n<!-- benchmark:odd -->\n| M×N×K") and "old" not in once
    assert "<!-- /benchmark:odd -->\ntext\n<!-- benchmark:summary -->\n| suite" in once
    assert table.fill(once, documents) == once


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- benchmark:odd -->\n", "1 opening benchmark markers, 0 with their closing one"),
        (
            "<!-- benchmark:even -->\n<!-- /benchmark:even -->",
            "table 'even': must be brief, summary, host or a suite of",
        ),
        (
            "<!-- benchmark:small -->\n<!-- /benchmark:small -->",
            "table 'small': no results file has rows for it",
        ),
    ],
)
def test_fill_refuses(text, message):
    """An unclosed marker, an unknown table and a table without rows are refused."""
    with pytest.raises(ValueError, match=message):
        table.fill(text, {"r.json": document()})


def test_command_checks_then_writes(tmp_path, capsys):
    """--check fails on an old README and writes nothing; after writing it passes."""
    (tmp_path / "r").mkdir()
    results.save(tmp_path / "r" / "x.json", document())
    readme = tmp_path / "README.md"
    readme.write_text(README, encoding="utf-8")
    words = ["--readme", str(readme), "--results", str(tmp_path / "r")]
    assert table.main([*words, "--check"]) == 1
    assert "out of date: run python -m benchmarks.table" in capsys.readouterr().err
    assert readme.read_text(encoding="utf-8") == README
    assert table.main(words) == 0
    assert table.main([*words, "--check"]) == 0 and "**3.50**" in readme.read_text(encoding="utf-8")


def test_command_writes_the_ladder_too(tmp_path, capsys, monkeypatch):
    """Without --readme one command compares and writes READMEs and what the ladder shows, its plot among it."""
    picture = tmp_path / "ladder.svg"
    picture.write_text("old", encoding="utf-8")
    monkeypatch.setattr(table, "READMES", [tmp_path / "README.md"])
    monkeypatch.setattr(table.worklog, "texts", lambda source, folder: {picture: source.name})
    (tmp_path / "README.md").write_text("no tables", encoding="utf-8")
    assert table.main(["--check"]) == 1 and "ladder.svg is out of date" in capsys.readouterr().err
    assert picture.read_text(encoding="utf-8") == "old"
    assert table.main([]) == 0 and picture.read_text(encoding="utf-8") == "handwritten.json"
    assert table.main(["--check"]) == 0


def test_command_without_results_says_so(tmp_path, capsys):
    """A README whose tables have no results is an error in one line."""
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    words = ["--readme", str(tmp_path / "README.md"), "--results", str(tmp_path / "none")]
    assert table.main(words) == 1
    assert capsys.readouterr().err.endswith("README.md: table 'odd': no results file has rows for it\n")


def test_readme_of_the_project_is_up_to_date(monkeypatch):
    """The project's READMEs say what their results files say."""
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    documents = table.found(Path("benchmarks/results"))
    for path in table.READMES:
        text = path.read_text(encoding="utf-8")
        base = path.parent.as_posix().removeprefix(".")
        assert table.fill(text, documents, base) == text, "run python -m benchmarks.table"


def test_a_brief_table_links_from_its_folder():
    """The suites that a first reader asks for, TN alone, with links from where the text stands."""
    documents = table.found(Path(__file__).resolve().parents[2] / "benchmarks" / "results")
    near = {f"benchmarks/results/{Path(path).name}": x for path, x in documents.items() if "h100" not in path}
    text = table.render("brief", near, "benchmarks")
    assert "| squares, 1024 to 16384 | 9 |" in text and "](results/gemm" in text
    assert (
        "| drawn anew after the fit (latest three versions), aligned, any majors, by the cost model alone | "
        in text
    )
    assert text.count("](results/fresh-") == fresh_check.POOLED and "-regret" not in text
    assert "(benchmarks/results/gemm" in table.render("brief", near)


def test_drawn_problems_stand_in_one_table(monkeypatch):
    """Families in the order of their files, comparisons with cuBLAS first, and files that are no draws left out."""
    none: dict[str, list[float]] = {"again": [], "undeclared": []}
    found = [
        none | {"family": "odd", "regret": True, "first": [0.9, 1.0]},
        {"family": "chain", "regret": False, "first": [1.0, 4.0], "again": [0.5], "undeclared": [2.0, 8.0]},
        none | {"family": "odd", "regret": False, "first": [3.0]},
    ]
    asked = []
    monkeypatch.setattr(fresh_check, "pooled", lambda documents: asked.extend(documents) or found)
    environment = {"gpu": "GPU", "torch": "2", "date": "2026-01-01T00:00:00", "commit": "c" * 40}
    drawn = {"environment": environment | {"fresh": {"seed": "1", "regret": False}}, "rows": []}
    text = table.render(
        table.UNSEEN, {"x/fresh.json": drawn, "x/gemm.json": {"environment": environment, "rows": []}}
    )
    assert asked == [drawn] and "fresh.json" in text and "gemm.json" not in text
    assert text.splitlines()[2:4] == [
        "| chain | 2 | **2.000** (1.000) | **0.500** (0.500) | **4.000** (2.000) |  |  |",
        "| odd | 1 | **3.000** (3.000) |  |  | **0.949** (0.900) | 2 |",
    ]


def test_without_draws_there_is_no_table_of_them():
    """As for every other table."""
    with pytest.raises(table.NoRows, match="'unseen': no results file has drawn problems"):
        table.render(table.UNSEEN, {})


def test_the_cost_of_invariance_by_suite():
    """Problems of one suite stand in one line: how many have another kernel, and what is left of the speed."""
    rows = []
    for m, us, other in ((16, 10.0, "a"), (128, 12.5, "b")):
        case = Case(suite="invariant_decode", dtype="bf16", majors="kk", m=m, n=4096, k=512)
        times = {
            name: Measurement(us=t, us_min=t, us_max=t, rounds=4)
            for name, t in (("cutegemm", 10.0), ("cutegemm_invariant", us))
        }
        plans = {"cutegemm": "a", "cutegemm_invariant": other}
        rows += results.case_rows(case, times, plans=plans, regime="short", baseline="cutegemm")
    documents = {"i.json": document() | {"rows": rows}}
    assert "| decode | 2 | 1 | **0.894** | 0.800 |" in table.render("invariant", documents)
    with pytest.raises(table.NoRows):
        table.render("summary", documents)


def test_schedulers_beside_a_kernel_that_holds_sms():
    """A line a scheduler, with its time alone and beside the other kernel."""
    shape = (4096, 4096, 512)
    times = {(0, "persistent"): 10.0, (0, "dynamic"): 11.0, (20, "persistent"): 20.0, (20, "dynamic"): 13.2}
    rows = [occupied.row_of(shape, held, who, us, 10.0) for (held, who), us in times.items()]
    text = table.render("occupied", {"o.json": document() | {"rows": rows}})
    assert "| 4096×4096×512 | persistent | 10.0 | 20 | 20.0 | **2.00** |" in text
    assert "| 4096×4096×512 | dynamic | 11.0 | 20 | 13.2 | **1.20** |" in text


def test_tables_of_single_probes():
    """fp8 by scales and suite, beside torch and our bf16; groups by tokens. What was refused counts nowhere."""
    shape = {"m": 16, "n": 8, "k": 32, "what": "row square"}
    rows = [
        shape | {"contender": "ours auto", "us": 2.0, "ratio": 1.5},
        shape | {"contender": "ours bf16", "us": 5.0, "ratio": 0.6},
        shape | {"contender": "torch exact", "us": 3.0, "ratio": 1.0},
    ]
    _, lines = probe_tables.fp8_lines(rows)
    assert ["of rows", "squares", "1", "**1.50**", "1.50", "**2.50**", "2.50"] in lines
    common = {"contender": "cutegemm", "kind": "forward", "tokens": 16, "spread": "uniform"}
    ratios = [1.0, 4.0, None]
    uneven = common | {"spread": "zipf", "ratio": 0.5}
    head, lines = probe_tables.group_lines([*(common | {"ratio": x} for x in ratios), uneven])
    assert head[1] == "groups of rows × torch" and lines == [["16", "**2.00** (1.00)", "", "", ""]]
