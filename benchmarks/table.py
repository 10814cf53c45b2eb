# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of README.md and benchmarks/README.md and the ladder's figures from results files.

    python -m benchmarks.table [--check] [--readme FILE ...] [--results benchmarks/results]

With --readme only the tables of these files are written.

The text between `<!-- benchmark:NAME -->` and `<!-- /benchmark:NAME -->` is replaced; NAME is "brief", "summary",
"host", "unseen", "predicted", or a suite such as "epilogue". NAME-h100 uses the results in the folder `h100`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from benchmarks import command_line, fresh_check, peer_rows, results
from benchmarks.predicted import measured
from benchmarks.predicted import table as predicted
from benchmarks.probe_tables import FILES as PROBES
from benchmarks.probe_tables import LINES
from benchmarks.results import Row
from benchmarks.suite_tables import INVARIANT, TABLES, markdown, suite_table
from benchmarks.suites import BRIEF, PRODUCTS
from handwritten.ladder import worklog
from handwritten.ladder.source import FOLDER

MARKED = re.compile(r"(<!-- benchmark:(?P<name>[\w-]+) -->\n)(.*?)(<!-- /benchmark:(?P=name) -->)", re.DOTALL)
OPENING = "<!-- benchmark:"
READMES = [Path("README.md"), Path("benchmarks/README.md")]
LADDER = "sweeps/handwritten.json"  # the ladder's results
PREDICTED = "predicted"  # the table of the cost model's errors on committed sweeps
UNSEEN = "unseen"  # the table of drawn problems that no fit has seen
Document = dict[str, Any]
PREFIXES = {"invariant": INVARIANT, "peers": peer_rows.PREFIX}
# tables of all suites together
WHOLE = ("brief", "summary")
# folders of other GPUs' results
FOLDERS = ("h100",)
# tables that may be empty until a results file has rows for them
TO_MEASURE = ("epilogue", "llama", "models", "invariant", "occupied", "peers", "quantize")


class NoRows(ValueError):
    """No results file has rows for a table."""


def render(name: str, documents: dict[str, Document], base: str = "") -> str:
    """One table and its source files as Markdown.

    Args:
        name: of the table.
        documents: results by path, from the project's root.
        base: folder of the text with the table.

    Raises:
        NoRows: no results file has rows for it.
        ValueError: no such table.
    """
    whole = name
    name, _, folder = whole.partition("-")
    if name == PREDICTED:
        return "\n".join([*markdown(*predicted()), "", measured(base), ""])
    if name in LINES:
        return _probe(name, documents, base)
    if name not in (*TABLES, *PRODUCTS, UNSEEN) or folder not in ("", *FOLDERS):
        others = (x for x in TABLES if x not in ("host", *WHOLE))
        suites = ", ".join([*PRODUCTS, *others, *LINES, PREDICTED, UNSEEN])
        folders = " or ".join(f"-{x}" for x in FOLDERS)
        raise ValueError(
            f"table {whole!r}: must be brief, summary, host or a suite of {suites}, perhaps with {folders}"
        )
    documents = {path: x for path, x in documents.items() if _folder(path) == folder}
    if name == UNSEEN:
        drawn = _drawn(documents)
        if not drawn:
            raise NoRows(f"table {whole!r}: no results file has drawn problems")
        return _sourced(markdown(*fresh_check.unseen(list(drawn.values()))), drawn, base)
    newest: dict[tuple[Any, ...], Row] = {}
    source: dict[tuple[Any, ...], str] = {}
    for path, document in sorted(documents.items(), key=lambda item: item[1]["environment"]["date"]):
        for row in (x for x in document["rows"] if _belongs(x["suite"], name)):
            newest[results.key(row)] = row
            source[results.key(row)] = path
    if not newest:
        raise NoRows(f"table {whole!r}: no results file has rows for it")
    rows = list(newest.values())
    if name == "brief":
        rows = [x for x in rows if x["suite"] in BRIEF and x["majors"] == "kk"]
    shown = {source[results.key(x)] for x in rows}
    table = TABLES.get(name, suite_table)(rows)
    used = {path: documents[path] for path in source.values() if path in shown}
    if name == "brief":
        drawn = {path: x for path, x in _drawn(documents).items() if not x["environment"]["fresh"]["regret"]}
        table += fresh_check.brief(list(drawn.values()))
        used |= drawn
    return _sourced(table, used, base)


def _drawn(documents: dict[str, Document]) -> dict[str, Document]:
    """The results of the last trees that drew problems, by path."""
    found = {path: x for path, x in documents.items() if "fresh" in x["environment"]}
    last = fresh_check.last_trees(list(found.values()))
    return {path: x for path, x in found.items() if x in last}


def _sourced(table: list[str], used: dict[str, Document], base: str) -> str:
    """A table and the files that it shows."""
    files = [results.source(path, x["environment"], base) for path, x in used.items()]
    return "\n".join([*table, "", "Measured: " + "; ".join(files) + ".", ""])


def _probe(name: str, documents: dict[str, Document], base: str) -> str:
    """The table of a single probe and its files."""
    paths = [next((x for x in documents if x.endswith(y)), y) for y in PROBES[name]]
    missing = [x for x in paths if x not in documents]
    if missing:
        raise NoRows(f"table {name!r}: no file {missing[0]}")
    table = markdown(*LINES[name]([row for x in paths for row in documents[x]["rows"]]))
    return _sourced(table, {x: documents[x] for x in paths}, base)


def _folder(path: str) -> str:
    """The folder of another GPU's results that contains a file; "" if there is none."""
    parent = Path(path).parent.name
    return parent if parent in FOLDERS else ""


def _belongs(suite: str, name: str) -> bool:
    """Whether rows of a suite belong in a table."""
    if name in PREFIXES:
        return suite.startswith(PREFIXES[name])
    return suite in PRODUCTS if name in WHOLE else suite == name


def _body(name: str, now: str, documents: dict[str, Document], base: str) -> str:
    """The text between a table's markers; `now` is the present one."""
    try:
        return render(name, documents, base)
    except NoRows:
        if now or name not in TO_MEASURE:
            raise
        return now


def fill(text: str, documents: dict[str, Document], base: str = "") -> str:
    """A text with every marked table rendered again; `base` is its folder.

    Raises:
        ValueError: a marker is not closed, or a table cannot be rendered.
    """
    filled, count = MARKED.subn(lambda m: m[1] + _body(m["name"], m[3], documents, base) + m[4], text)
    if count != text.count(OPENING):
        raise ValueError(f"{text.count(OPENING)} opening benchmark markers, {count} with their closing one")
    return filled


def found(folder: Path) -> dict[str, Document]:
    """Results by path: of a folder, of its folders for other GPUs, and of single probes."""
    paths = [x for below in ("", *FOLDERS) for x in sorted((folder / below).glob("*.json"))]
    paths += [x for names in PROBES.values() for name in names if (x := folder / name).exists()]
    return {path.as_posix(): results.load(path) for path in paths}


def main(arguments: list[str]) -> int:
    """Write, or only compare with --check. Returns 1 if a text is out of date or cannot be filled."""
    parser = command_line.parser("table", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a text is out of date")
    parser.add_argument("--readme", type=Path, nargs="+", help="these files alone, without the ladder")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args(arguments)
    documents = found(args.results)
    status = max(_filled(path, documents, args.check) for path in args.readme or READMES)
    if not args.readme:
        texts = worklog.texts(args.results / LADDER, FOLDER)
        status = max(status, *(_written(path, text, args.check) for path, text in texts.items()))
    return status


def _filled(path: Path, documents: dict[str, Document], check: bool) -> int:
    """Fill or compare the tables of a file; returns the exit status."""
    base = "" if path.is_absolute() else path.parent.as_posix().removeprefix(".")
    try:
        return _written(path, fill(path.read_text(encoding="utf-8"), documents, base), check)
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1


def _written(path: Path, text: str, check: bool) -> int:
    """Write or compare the text of a file; returns the exit status."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{path} is out of date: run python -m benchmarks.table", file=sys.stderr)
        return 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
