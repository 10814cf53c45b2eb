# SPDX-License-Identifier: Apache-2.0
"""The documentation: every Python block runs, pages are linked, and the site builds without a warning."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cutegemm
from tests.support.printed import missing

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# pages whose blocks run one after the other
PAGES = ("index", "tutorial", "spec", "epilogues", "fp8", "pytorch", "tuning", "debugging", "guarantees", "deployment",
         "faq", "learn/roofline", "learn/layouts", "learn/hopper", "learn/kernels")  # fmt: skip
# pages with Python whose blocks other tests run: below, tests/cli/test_document.py, tests/kernels/test_extending.py
ELSEWHERE = ("emulator", "cli", "extending")
NEEDS_GPU = "# needs a Hopper GPU"


# kernels for the emulator's page: what takes a tensor map, an array and a number; what adds two arrays
OUTSIDE = """
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void kernel(const __grid_constant__ Map map, unsigned short* d, int rows) {
    int row = blockIdx.x * 64 + threadIdx.x % 64;
    if (row < rows) for (int i = threadIdx.x / 64; i < 64; i += 2) d[row * 64 + i] = 0x4000;
}
"""
PAIR = """
extern "C" __global__ void add(const float* x, const float* w, float* y) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] + w[i];
}
"""


def has_gpu():
    """Whether a Hopper GPU is here."""
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def ladder():
    """The module that makes pages when the site is built."""
    spec = importlib.util.spec_from_file_location("made_pages", DOCS / "hooks" / "made_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def inductor_as_it_was():
    """A page that enables our product in Inductor leaves it disabled for what runs after."""
    yield
    if (enabled := sys.modules.get("cutegemm.inductor")) is not None:
        enabled.disable()


@pytest.mark.usefixtures("inductor_as_it_was")
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """Every Python block of a page runs, one after the other, in an empty folder, and prints the lines below it."""
    text = (DOCS / f"{page}.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
    assert blocks
    if any("torch" in x for x, _ in blocks):
        pytest.importorskip("torch")
    if any("transformers" in x for x, _ in blocks):
        pytest.importorskip("transformers")
    for block, shown in blocks:
        capsys.readouterr()
        if NEEDS_GPU in block and not has_gpu():
            with pytest.raises(cutegemm.GemmError, match="there is none"):
                exec(block, names)
        else:
            exec(block, names)
            assert not missing(shown, capsys.readouterr().out)


def test_every_page_with_python_is_run():
    """A page with a Python block is in one of the two lists."""
    pages = {x.relative_to(DOCS).as_posix()[:-3] for x in DOCS.rglob("*.md") if "```python" in x.read_text()}
    assert pages == {*PAGES, *ELSEWHERE}


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    """README.md's blocks run in order: on small matrices, on the CPU."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    for large, small in (("4095", "95"), ("4097", "97"), ("1000", "40"), ('device="cuda"', 'device="cpu"')):
        assert large in text
        text = text.replace(large, small)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)


def test_the_other_python_of_the_emulators_page_runs(tmp_path, monkeypatch):
    """A kernel from outside and a sequence of launches, with kernels that fit the arguments of the page."""
    import numpy

    from tests.support.emulator_pipeline import compile_cuda

    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.ptx").write_text(compile_cuda(OUTSIDE))
    pair = compile_cuda(PAIR)
    ones = numpy.ones(132 * 384, numpy.float32)
    names: dict = {"first": pair, "second": pair, **{x: ones.copy() for x in ("x", "w1", "h", "w2", "y")}}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "emulator.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in (blocks[0], blocks[2]):
        exec(block, names)
    assert (names["d"] == 2).all() and not names["result"].findings
    assert (names["h"] == 2).all() and (names["y"] == 3).all()


def test_the_race_in_five_lines_is_found_as_shown(tmp_path, monkeypatch, capsys):
    """The emulator's page: its kernel, compiled, run by its Python, prints its findings, and none with the barrier."""
    from tests.support.emulator_pipeline import compile_cuda

    text = (DOCS / "emulator.md").read_text().split("## A race in five lines")[1]
    (source,) = re.findall(r"```cuda\n(.*?)```", text, re.DOTALL)
    python = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    shown = re.findall(r"```\n(uninitialised read: .*?)```", text, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    fixed = source.replace("// __syncthreads() is missing here", "__syncthreads();")
    for kernel, printed in ((source, shown), (fixed, "\n")):
        ptx = compile_cuda(kernel).replace("pipeline.cu", "reverse.cu")
        (tmp_path / "reverse.ptx").write_text(ptx)
        exec(python, {})
        # PTX lines are the compiler's affair
        assert re.sub(r"PTX line \d+", "", capsys.readouterr().out) == re.sub(r"PTX line \d+", "", printed)


@pytest.mark.parametrize("package", ["cutegemm", "cutegemm.nn", "cutegemm.epilogue", "cutegemm.layouts"])
def test_every_public_name_is_in_the_reference(package):
    """docs/api.md has each public name by itself or with its module; what only the tracer makes is left out."""
    pytest.importorskip("torch")
    named = set(re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    module = importlib.import_module(package)
    left = {
        name
        for name in module.__all__
        if f"{package}.{name}" not in named and getattr(module, name).__module__ not in named
    }
    assert left <= {"Node", "Result", "UnknownOperation", "Value"}


def test_every_field_of_the_spec_is_explained():
    """docs/spec.md names every field of GemmSpec."""
    from cutegemm import GemmSpec

    text = (DOCS / "spec.md").read_text()
    missing = [name for name in GemmSpec.__dataclass_fields__ if f"`{name}`" not in text]
    assert not missing


def test_every_function_of_the_epilogue_is_listed():
    """docs/epilogues.md names every function and reduction of the epilogue language."""
    from cutegemm.epilogue import functions

    text = (DOCS / "epilogues.md").read_text()
    assert not [x for x in functions.__all__ if x != "abs" and not re.search(rf"`{x}\b", text)]


def test_a_page_for_every_stage_of_the_ladder():
    """Every stage has its idea, a measured bar, its difference to the stage before, an exercise, its source, and a
    link for each worklog that it answers.
    """
    pages, before = ladder(), None
    for path in pages.stages():
        text = pages.page(path, before)
        for words in ("**The idea.**", "## Measured", "## Try it", f'"{path.name}"'):
            assert words in text, path.name
        assert (before is None) or "## What changed in the code" in text
        answers = pages.header(path.read_text())[1].get("Answers", "")
        named, shown = re.findall(r'"([^"]+)"', answers), pages.linked(answers)
        assert len(named) == len(re.findall(r'\["[^"]+"\]\(https://', shown)), (path.name, shown)
        before = path


def test_a_picture_for_every_kernel_shows_its_plan(monkeypatch):
    """The page on kernels has every picture; each says the stages and every barrier's arrivals of its plan."""
    import cutegemm

    monkeypatch.syspath_prepend(DOCS / "hooks")
    pictures = importlib.import_module("kernel_pictures")
    page = (DOCS / "learn" / "kernels.md").read_text()
    assert re.findall(r"<!-- kernel:(\w+) -->", page) == list(pictures.PLANS)
    for name, (spec, of) in pictures.PLANS.items():
        shown, plan = pictures.picture(name), cutegemm.plan(spec, of, database=False)
        if name in pictures.FLOWS:
            continue
        assert f"ring of {plan.config.stages} stages" in shown
        assert all(f"{x.arrivals} by {x.arrives}" in shown for x in plan.barriers if "'" not in x.arrives)
        assert shown.count("<circle") == len(plan.barriers)


def test_pictures_of_layouts_show_every_element(monkeypatch):
    """Each picture that a page names has a cell for each element; the swizzle takes a wavefront where none takes 8."""
    monkeypatch.syspath_prepend(DOCS / "hooks")
    pictures = importlib.import_module("layout_pictures")
    named = [x for page in DOCS.rglob("*.md") for x in re.findall(r"<!-- layout:(\w+) -->", page.read_text())]
    assert sorted(named) == sorted(pictures.PICTURES)
    for name, draw in pictures.PICTURES.items():
        shown = draw()
        assert shown.count("<rect") == (128 if name == "accumulator" else 64)
        if name in ("row_major", "column_major", "blocked"):
            cells = re.findall(r'fill="#000">(\d+)<', shown)
            assert sorted(map(int, cells)) == list(range(64))
    assert (
        "8 wavefronts" in pictures.PICTURES["plain"]() and "1 wavefront." in pictures.PICTURES["swizzled"]()
    )


def test_every_stage_stands_beside_the_librarys_code(monkeypatch):
    """A stage's page shows the library's code for its idea, and the spec of every twin that is measured."""
    monkeypatch.syspath_prepend(DOCS / "hooks")
    code = importlib.import_module("beside")
    twins = []
    for path in ladder().stages():
        section = code.section(path.stem)
        assert "```python" in section and "cutegemm/" in section
        twins += re.findall(r"^# (\d\d_\w+)$", section, re.MULTILINE)
    rows = json.loads((ROOT / "benchmarks/results/sweeps/handwritten.json").read_text())["rows"]
    measured = {x["contender"] for x in rows if x["contender"].endswith(" (DSL)")}
    assert sorted(twins) == sorted(x.removesuffix(" (DSL)") for x in measured)


def test_every_page_and_example_can_be_found():
    """The navigation has every page; the first page links each guide and names each example."""
    config, first = (ROOT / "mkdocs.yml").read_text(), (DOCS / "index.md").read_text()
    pages = {x.relative_to(DOCS).as_posix() for x in DOCS.rglob("*.md")} - {"learn/exercises.md"}
    assert not {x for x in pages if x not in config}
    linked = set(re.findall(r"\]\(([\w/]+\.md)", first)) | {"index.md"}
    assert not {x for x in pages if x not in linked and not x.startswith("learn/")}
    assert not {x.stem for x in (ROOT / "examples").glob("*.py") if f"`{x.stem}`" not in first}


def test_the_site_builds(tmp_path):
    """`mkdocs build --strict` ends without a warning."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "learn" / "ladder" / "20_persistent_cluster" / "index.html").exists()


@pytest.mark.parametrize("name, what, most", [("README.md", r"^", 120), ("CHANGELOG.md", r"^- ", 40)])
def test_what_is_read_first_is_short(name, what, most):
    """The README has at most 120 lines, the changelog 40 bullets."""
    assert len(re.findall(what, (DOCS.parent / name).read_text(), re.MULTILINE)) <= most
