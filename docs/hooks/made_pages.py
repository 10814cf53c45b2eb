# SPDX-License-Identifier: Apache-2.0
"""Pages that are made when the site is built: a page for each stage of the ladder, and the benchmarks' tables.

A stage's page is made of the sources, their differences, and the committed results.

Nothing is written by hand but the exercises (`learn/exercises.md`): the idea, what changes and what it answers stand in
each source's header, figures in the results file that the ladder's worklog is written from.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "handwritten"
RESULTS = ROOT / "benchmarks" / "results" / "sweeps" / "handwritten.json"
COUNTERS = SOURCES / "counters.json"
COUNTED_ON = [256, 256, 128]
# shown name of a count -> the emulator's counts that it adds up
COUNTED = {
    "warp instructions": ("warp_instructions",),
    "32-byte sectors loaded by threads": ("global_load_sectors",),
    "bytes copied asynchronously to shared memory": ("async_copy_bytes",),
    "bytes loaded by TMA": ("tma_load_bytes",),
    "shared-memory wavefronts": (
        "shared_load_wavefronts",
        "shared_store_wavefronts",
        "wgmma_shared_wavefronts",
    ),
    "of these, bank conflicts": ("shared_conflicts",),
}
# lines of a difference up to which it is shown open
SHOWN = 120
SIZE = 4096
PARTS = {"Idea": "The idea", "Changes": "What changes", "Answers": "What it answers"}


def stages() -> list[Path]:
    """The sources in order."""
    return sorted(SOURCES.glob("[0-9][0-9]_*.cu"))


def header(source: str) -> tuple[str, dict[str, str]]:
    """(title, sections by name) of a source's header comment."""
    lines = []
    for line in source.splitlines()[1:]:
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").removeprefix(" "))
    title = lines[0].split(": ", 1)[1]
    found: dict[str, str] = {}
    for line in lines[1:]:
        begun = re.match(r"([A-Z]\w+)\s{2,}(\S.*)", line)
        if begun:
            name = begun[1]
            found[name] = begun[2]
        elif line.strip() and found:
            found[name] += f" {line.strip()}"
    return title, found


def body(source: str) -> list[str]:
    """The lines of a source below its header comment."""
    lines = source.splitlines()
    first = next(i for i, x in enumerate(lines) if not x.startswith("//"))
    return lines[first:]


def helper(name: str) -> Any:
    """A module of this folder or of the repository; it may import the library."""
    sys.path[:0] = [x for x in (str(ROOT), str(Path(__file__).parent)) if x not in sys.path]
    return importlib.import_module(name)


def linked(words: str) -> str:
    """Text with the sources that it names linked, as the ladder's README links them."""
    readme = (SOURCES / "README.md").read_text()
    for title, address in re.findall(r'\["([^"]+)"\]\((https?://[^)]+)\)', " ".join(readme.split())):
        words = re.sub(rf'"({re.escape(title)})[^"]*"', rf'["\1"]({address})', words)
    return words


def rates() -> dict[tuple[str, str], float]:
    """TFLOP/s by (type, contender) at the shown size without C."""
    rows = json.loads(RESULTS.read_text())["rows"]
    return {
        (x["dtype"], x["contender"]): x["tflops"]
        for x in rows
        if x["m"] == x["n"] == x["k"] == SIZE and x["beta"] == 0
    }


def bar(name: str, value: float, greatest: float, strong: bool, words: str) -> str:
    """One bar of a chart."""
    fill = "accent-fg-color" if strong else "default-fg-color--light"
    return (
        f'<div style="display:flex;align-items:center;gap:.6em">'
        f'<code style="width:20em;white-space:nowrap">{name}</code>'
        f'<span style="width:{30 * value / greatest:.1f}em;height:1em;background:var(--md-{fill})"></span>'
        f"<span>{words}</span></div>"
    )


def bars() -> str:
    """The ladder in one picture: a bar a stage."""
    figures = helper("handwritten.ladder.worklog").Figures(json.loads(RESULTS.read_text()))
    picture = helper("handwritten.ladder.bars").picture(figures, standalone=False)
    return "<figure>" + picture.replace("\n", "") + "</figure>"


def chart(stem: str, before: str | None) -> str:
    """Measured bars: the stage before, this one's variants, and cuBLAS, of the type that has most of them."""
    measured = rates()
    for dtype in ("fp32", "bf16"):
        mine = [name for kind, name in measured if kind == dtype and name.startswith(stem)]
        if not mine:
            continue
        names = [
            *(name for kind, name in measured if kind == dtype and before and name.startswith(before)),
            *mine,
            "cublas",
        ]
        top = max(measured[dtype, x] for x in names)
        shown = [bar(x, measured[dtype, x], top, x in mine, f"{measured[dtype, x]:.1f}") for x in names]
        environment = json.loads(RESULTS.read_text())["environment"]
        where = environment.get("gpu", "")
        where = where.get("name", "") if isinstance(where, dict) else where
        return (
            f"TFLOP/s at {SIZE}³, {dtype}, beta = 0, {where} "
            f"(`{RESULTS.relative_to(ROOT)}`):\n\n<div>{''.join(shown)}</div>\n"
        )
    return "This stage is timed on deep K; see the worklog's split-K table.\n"


def counts(stem: str, before: str | None) -> str:
    """A table of what the emulator counted of the stage before and of this one, on the same problem and type."""
    document = json.loads(COUNTERS.read_text())
    rows = [x for x in document["rows"] if x["shape"] == COUNTED_ON]
    mine = [x for x in rows if x["stage"].startswith(stem)]
    earlier = [x for x in rows if before and x["stage"].startswith(before) and x["dtype"] == mine[0]["dtype"]]
    earlier.sort(key=lambda x: rates().get((x["dtype"], x["stage"]), 0.0))  # the fastest variant last
    shown = [*earlier[-1:], *mine]
    names = " | ".join("`" + x["stage"] + "`" for x in shown)
    head = f"| M × N × K = {' × '.join(map(str, shown[0]['shape']))} | {names} |"
    lines = [head, "|---|" + "--:|" * len(shown)]
    for name, parts in COUNTED.items():
        values = [sum(x["counts"].get(part, 0) for part in parts) for x in shown]
        if any(values):
            lines.append(f"| {name} | {' | '.join(f'{v:,}' for v in values)} |")
    return "\n".join(lines) + f"\n\nCounted by the emulator (`{COUNTERS.relative_to(ROOT)}`).\n"


def exercises() -> dict[str, str]:
    """The exercises by a stage's number."""
    text = (ROOT / "docs" / "learn" / "exercises.md").read_text()
    parts = re.split(r"^## (\d\d).*$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (x.strip() for x in parts[1::2])))


def page(path: Path, before: Path | None) -> str:
    """One stage's page."""
    source = path.read_text()
    title, sections = header(source)
    out = [f"# {path.stem.replace('_', ' ')}\n", f"{title[0].upper()}{title[1:]}\n"]
    out += [f"**{shown}.** {linked(sections[name])}\n" for name, shown in PARTS.items() if name in sections]
    out.append("## Measured\n\n" + chart(path.stem, before.stem if before else None))
    out.append("## Counted\n\n" + counts(path.stem, before.stem if before else None))
    if before is not None:
        changed = list(
            difflib.unified_diff(
                body(before.read_text()), body(source), before.name, path.name, lineterm="", n=2
            )
        )
        added = sum(x.startswith("+") and not x.startswith("+++") for x in changed)
        removed = sum(x.startswith("-") and not x.startswith("---") for x in changed)
        words = f"{added} lines added and {removed} removed since `{before.name}`"
        text = "```diff\n" + "\n".join(changed) + "\n```\n"
        if len(changed) > SHOWN:
            text = f'??? note "{words}: most of the file, so read the source first"\n\n' + indented(text)
            words = "This step rewrites the kernel"
        out.append(f"## What changed in the code\n\n{words}.\n\n{text}")
    out.append(helper("beside").section(path.stem))
    out.append("## Try it\n\n" + exercises()[path.stem[:2]] + "\n")
    command = f"python -m handwritten --stages {int(path.stem[:2])}"
    out.append(f"Run this stage on a laptop with `{command} --emulate`, on a GPU with `{command}`.\n")
    out.append('## The source\n\n??? example "' + path.name + '"\n\n' + indented(f"```cuda\n{source}```\n"))
    return "\n".join(out)


def indented(text: str) -> str:
    """Text inside an admonition."""
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())


def measured() -> str:
    """The benchmarks' tables; files outside the site are named, not linked."""
    text = (ROOT / "benchmarks" / "README.md").read_text()
    return re.sub(r"\[([^\]]*)\]\((?!http)[^)]*\)", r"`\1`", text)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages before the site is built."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "measured.md", content=measured()))
    before = None
    for path in stages():
        files.append(File.generated(config, f"learn/ladder/{path.stem}.md", content=page(path, before)))
        before = path
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put pictures of kernels and layouts, and the bars of the ladder, where a page names them."""
    for kind in ("kernel", "layout"):
        if f"<!-- {kind}:" in markdown:
            markdown = helper(f"{kind}_pictures").filled(markdown)
    return (
        markdown.replace("<!-- ladder:bars -->", bars()) if "<!-- ladder:bars -->" in markdown else markdown
    )


def on_config(config: Any) -> Any:
    """Put the stages into the navigation, after the pages on how to read them."""
    for entry in config["nav"]:
        if "Learn Hopper GEMM" in entry:
            ladder = [{p.stem.replace("_", " "): f"learn/ladder/{p.stem}.md"} for p in stages()]
            if not any("The ladder" in x for x in entry["Learn Hopper GEMM"] if isinstance(x, dict)):
                entry["Learn Hopper GEMM"].insert(4, {"The ladder": ladder})
    return config
