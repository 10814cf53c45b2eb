# SPDX-License-Identifier: Apache-2.0
"""The page of `explain --html`: one file without links, figures that are the plan's, and a look in a real browser."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import struct
import subprocess
import zlib

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.cli.facts.explained import explained
from cutegemm.cli.inputs import Case
from cutegemm.cli.page import charts, figures
from cutegemm.cli.page.page import page
from cutegemm.layouts import banks, hardware
from tests.support.command import document, run
from tests.support.patience import PATIENCE

VOID = {"meta", "rect", "line", "circle", "br"}
MOST_BYTES = 1 << 20
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip


class Parsed(html.parser.HTMLParser):
    """Tags with their attributes, and what is not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.trouble, self.titles = [], [], [], []
        self.feed(text)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.trouble.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "title":
            self.titles.append(data)

    def ids(self):
        return [x["id"] for _, x in self.tags if "id" in x]


SPECS = {
    "pingpong": (GemmSpec(), problem(4096, 4096, 4096)),
    "cooperative": (GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1)), problem(2048, 2048, 2048)),
    "swapped": (GemmSpec(tile=Tile(16, 64, 64), swap=True), problem(16, 4096, 4096)),
    "multistage": (GemmSpec(schedule="multistage"), problem(333, 777, 555)),
    "split K": (GemmSpec(split_k=4, split_reduction="launch"), problem(256, 256, 8192)),
    "simt": (GemmSpec(), problem(300, 300, 300, dtype="fp32")),
    "unaligned": (GemmSpec(), problem(64, 64, 7, majors="kk")),
    "large": (GemmSpec(tile=Tile(64, 64, 64)), problem(16384, 16384, 512)),
    "empty": (GemmSpec(), problem(0, 8, 8)),
}


def made(name):
    """(plan, what is said of it, its page)."""
    plan, found = explained(Case(*SPECS[name], H200, "a test"))
    return plan, found, page(plan, found)


@pytest.mark.parametrize("name", SPECS)
def test_a_page_is_one_whole_file(name):
    """Tags close in order, ids are unique, it has less than a mebibyte and loads nothing from anywhere."""
    text = made(name)[2]
    parsed = Parsed(text)
    assert not parsed.trouble and not parsed.open
    assert len(set(parsed.ids())) == len(parsed.ids())
    assert len(text.encode()) <= MOST_BYTES
    assert not [x for _, x in parsed.tags if {"src", "href", "srcset", "data"} & set(x)]
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|import\(", text)
    assert "prefers-color-scheme:dark" in text and 'data-theme="dark"' not in text


@pytest.mark.parametrize("name", [x for x in SPECS if x not in ("simt", "empty")])
def test_a_page_has_every_figure(name):
    """Owners, shared memory, boxes, raster, timeline and roofline, each with a caption."""
    _, found, text = made(name)
    parsed = Parsed(text)
    wanted = {"owners", "fragment", "memory", "smem-a", "smem-b", "raster", "timeline", "roofline"}
    wanted |= {f"box-{x.operand.lower()}".replace(" ", "-") for x in found.boxes}
    assert wanted <= set(parsed.ids())
    assert text.count("<figcaption>") == text.count("<figure")


def test_kernels_without_roles_and_empty_outputs_have_what_there_is():
    """CUDA-core kernels have no timeline of roles; an empty D has its reason alone."""
    ids = Parsed(made("simt")[2]).ids()
    assert {"raster", "roofline"} <= set(ids) and "timeline" not in ids
    assert "nothing is launched" in made("empty")[2] and "<figure" not in made("empty")[2]


@pytest.mark.parametrize("name", ["pingpong", "swapped", "multistage"])
def test_shared_memory_is_where_the_layout_puts_it(name):
    """Each 16-byte chunk of a stage is at one address of its own, that of the kernel's layout; the title says so."""
    plan, _, text = made(name)
    for label, operand, rows in zip(plan.multiply.factors, plan.config.operands, plan.config.tile):
        depth = plan.config.tile[2]
        chunks = list(figures.places(operand, rows, depth))
        assert sorted(x for x, _, _ in chunks) == list(range(0, rows * depth * operand.dtype.bytes, 16))
        major = "k" if operand.k_major else "mn"
        layout = hardware.smem_layout((rows, depth), major, operand.swizzle, operand.dtype.bits)
        for address, row, k in chunks[:: max(1, len(chunks) // 50)]:
            assert layout(row, k) * operand.dtype.bytes == address
        address, row, k = chunks[1]
        bank = address % 128 // 4
        titles = [x for x in Parsed(text).titles if x.startswith(f"{label.upper()} (")]
        assert any(f"byte {address:#x}, banks {bank} to {bank + 3}" in x for x in titles)


def test_eight_rows_of_a_swizzled_stage_have_no_conflict():
    """Chunks of one colour in eight neighbouring rows are in all banks, as `layouts.banks` counts."""
    plan, _, _ = made("pingpong")
    chunks = [(a, r) for a, r, k in figures.places(plan.config.a, 128, 64) if k == 8 and r < 8]
    assert banks.matrix_access([a for a, _ in sorted(chunks, key=lambda x: x[1])]).conflicts == 0


def test_the_owners_are_the_fragment_s():
    """The modes that the script is given map each element to the thread and value of wgmma's layout."""
    plan, _, text = made("cooperative")
    (given,) = [json.loads(x["data-owners"]) for _, x in Parsed(text).tags if "data-owners" in x]
    layout = hardware.wgmma_c_layout(plan.config.mma_columns)

    def index(element, modes):
        found, size = 0, 1
        for extent, stride in modes:
            found += element // stride % extent * size
            size *= extent
        return found

    for thread in range(0, 128, 7):
        for value in range(0, layout[1].size, 5):
            element = layout(thread, value)
            assert (index(element, given["threads"]), index(element, given["values"])) == (thread, value)
    assert (given["rows"], given["columns"], given["team"]) == (128, 256, plan.config.team)


@pytest.mark.parametrize("name", ["pingpong", "multistage", "large"])
def test_the_raster_draws_every_tile(name):
    """A cell for each work tile, with its number and wave; of very many the first ones, and that is said."""
    _, found, text = made(name)
    cells = [x for x in Parsed(text).titles if re.match(r"tile \(\d+, \d+\) is number", x)]
    count = found.raster.across * found.raster.down
    assert len(cells) == min(count, charts.MOST)
    assert (count > charts.MOST) == (f"The first {charts.MOST:,} are drawn" in text)


def test_boxes_of_a_shared_tile_are_told_apart():
    """A multicast tile has as many boxes of this CTA as it issues instructions; the others name another CTA."""
    _, found, text = made("pingpong")
    for x in found.boxes:
        if x.operand in ("A", "B"):
            titles = [t for t in Parsed(text).titles if t.startswith(f"{x.operand} box ")]
            assert sum("by another CTA" not in t for t in titles) == x.count
    assert any("by another CTA" in t for t in Parsed(text).titles)


def test_boxes_of_d_fill_its_tile():
    """The boxes drawn of D cover its tile in D's own orientation, also where the kernel computes the transpose."""
    for name in ("cooperative", "swapped"):
        plan, found, text = made(name)
        config = plan.config
        (box,) = [x for x in found.boxes if x.operand == "D"]
        titles = [t for t in Parsed(text).titles if t.startswith("D box ")]
        assert len(titles) * box.inner * box.outer == config.rows * config.stored_columns
        across = config.rows if plan.swapped else config.stored_columns
        down = config.stored_columns if plan.swapped else config.rows
        assert f"of a tile {across} x {down}, swizzle {box.swizzle}" in text


def test_a_spec_shows_its_epilogue_as_a_formula():
    """The page, `print` of a spec and its build show what the epilogue computes, not its nodes."""
    spec, of = GemmSpec(stages=3, epilogue=epi.bias()), problem(64, 64, 64, epilogue=epi.bias())
    assert str(spec) == "GemmSpec(stages=3, epilogue=<d = acc + bias>)"
    assert explained(Case(spec, of, H200, "a test"))[1].spec == str(spec)


def test_the_timeline_has_every_span():
    """A mark for each span of each role, and the source of its times in the caption."""
    _, found, text = made("pingpong")
    spans = [x for x in Parsed(text).titles if re.search(r": (load|mainloop|epilogue) of tile", x)]
    assert len(spans) == sum(len(x.spans) for x in found.timeline.tracks)
    assert "not measured" in text


def test_the_command_writes_the_page(tmp_path):
    """--html writes the file and says so; with --json both are made."""
    path = tmp_path / "x.html"
    assert "written to" in " ".join(run("explain", 512, 512, 512, "--html", path).split())
    assert path.read_text().startswith("<!doctype html>")
    path.unlink()
    assert document("explain", 512, 512, 512, "--html", path)["launch"] and path.exists()


def _pixels(path):
    """(width, height, colours that a sample of pixels has) of a PNG of 8 bits a channel."""
    data = path.read_bytes()
    width, height, _, kind = struct.unpack(">IIBB", data[16:26])
    at, packed = 8, b""
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + size]
        at += 12 + size
    channels = {2: 3, 6: 4}[kind]
    stride = width * channels + 1
    raw = bytearray(zlib.decompress(packed))
    before, colours = bytearray(stride - 1), {}
    for y in range(height):
        kind, row = raw[y * stride], raw[y * stride + 1 : (y + 1) * stride]
        for i in range(len(row)):
            left = row[i - channels] if i >= channels else 0
            up, corner = before[i], before[i - channels] if i >= channels else 0
            if kind == 1:
                row[i] = (row[i] + left) & 255
            elif kind == 2:
                row[i] = (row[i] + up) & 255
            elif kind == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            elif kind == 4:
                p = left + up - corner
                near = min((left, up, corner), key=lambda x: abs(p - x))
                row[i] = (row[i] + near) & 255
        before = row
        for x in range(0, width, 5):
            colour = tuple(row[x * channels : x * channels + 3])
            colours[colour] = colours.get(colour, 0) + 1
    return width, height, colours


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_a_browser_shows_it(tmp_path):
    """Chromium draws the page in both schemes without a script error, and the script names an element's owner."""
    text = made("cooperative")[2]
    asks = (
        "<script>const s=document.querySelector('svg[data-owners]');"
        "document.title=cutegemmOwner(JSON.parse(s.dataset.owners),105,130);"
        "document.documentElement.dataset.theme='%s';</script></body>"
    )
    grounds = []
    for theme in ("light", "dark"):
        path, picture = tmp_path / f"{theme}.html", tmp_path / f"{theme}.png"
        path.write_text(text.replace("</body>", asks % theme))
        common = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / theme}"]
        shot = [*common, "--window-size=500,900", f"--screenshot={picture}", path.as_uri()]
        subprocess.run(shot, capture_output=True, timeout=PATIENCE, check=True)
        width, height, colours = _pixels(picture)
        assert (width, height) == (500, 900) and len(colours) > 20
        grounds.append(max(colours, key=colours.get))
    assert grounds == [(255, 255, 255), (20, 23, 26)]
    dumped = subprocess.run(
        [*common, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    # row 105 is row 41 of the second consumer's 64; column 130
    thread, value = next(
        (t, v) for t in range(128) for v in range(128) if hardware.wgmma_c_layout(256)(t, v) == 41 + 64 * 130
    )
    title = re.search(r"<title>(.*?)</title>", dumped.stdout)[1]
    assert (
        title == f"D(105, 130) of the tile: consumer 2, warp {thread >> 5}, lane {thread & 31}, value {value}"
    )
