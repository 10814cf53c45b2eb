# SPDX-License-Identifier: Apache-2.0
"""The C header of an artefact compiles as C and C++ and launches what the recipe says."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cutegemm
from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.aot.recipe import WORKSPACE
from cutegemm.errors import InputError
from cutegemm.launch_layout import COUNTERS

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "support" / "fake_libcuda.c"
EXAMPLE = ROOT / "examples" / "cpp"
OF = problem(65, 33, 77, c_dtype="bf16")
MAIN = """
#include "gemm.h"
int main(void) {
  gemm_module module;
  gemm_0_args args;
  memset(&args, 0, sizeof args);
  args.a = 0x10000000000, args.b = 0x20000000000, args.c = 0x30000000000, args.d = 0x40000000000;
  args.workspace = 0x50000000000, args.counters = 0x60000000000, args.alpha = 2.5f, args.beta = -1.0f;
  if (gemm_load(&module)) return 1;
  return (int)gemm_0(&module, &args, 0);
}
"""


def cuda_include():
    """The folder of cuda.h, of the wheels or of a toolkit."""
    found = importlib.util.find_spec("nvidia")
    wheels = list(found.submodule_search_locations or ()) if found else []
    places = [Path(x) / "cu13" / "include" for x in wheels]
    places.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include")
    return next((x for x in places if (x / "cuda.h").exists()), None)


needs_compiler = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("g++") is None or cuda_include() is None,
    reason="needs gcc, g++ and cuda.h",
)


def compiled(*command, folder):
    """Run a compiler in a folder; warnings are errors."""
    done = subprocess.run(
        [*map(str, command), "-Wall", "-Wextra", "-Werror", f"-I{cuda_include()}", "-I."],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """An artefact of a copy and a GEMM, which share workspace."""
    folder = tmp_path_factory.mktemp("header")
    gemm = cutegemm.build(GemmSpec(tile=Tile(128, 64, 64), a_load="relayout", b_load="relayout"), OF)
    return cutegemm.load(gemm.save(folder / "x.cutegemm", [OF]))


@needs_compiler
@pytest.mark.parametrize(("compiler", "options"), [("gcc", "-std=c11"), ("g++", "-std=c++17")])
def test_it_launches_what_the_recipe_says(loaded, tmp_path, compiler, options):
    """Grid, block, cluster, shared memory and every byte of every parameter are those of the recipe."""
    recipe = loaded.artefact.recipes[0]
    (tmp_path / "gemm.h").write_text(loaded.header())
    (tmp_path / "main.c").write_text(MAIN)
    compiled("gcc", "-shared", "-fPIC", FAKE, "-o", "libcuda.so", folder=tmp_path)
    compiled(compiler, options, "-x", "c" if compiler == "gcc" else "c++", "main.c", "-x", "none", "libcuda.so",
             "-o", "main", folder=tmp_path)  # fmt: skip
    log = tmp_path / "log"
    addresses = {x: i << 40 for i, x in enumerate(("a", "b", "c", "d", WORKSPACE, COUNTERS), 1)}
    want = [x.filled(addresses, {"alpha": 2.5, "beta": -1.0}) for x in recipe.steps]
    sizes = ";".join(",".join(str(len(x)) for x in params) for params in want)
    env = {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_CUDA_LOG": str(log), "FAKE_CUDA_SIZES": sizes}
    done = subprocess.run([str(tmp_path / "main")], env=os.environ | env, check=False)
    assert done.returncode == 0
    for line, step, params in zip(log.read_text().splitlines(), recipe.steps, want, strict=True):
        name, *words = line.split(" ")
        assert name == loaded.artefact.kernels[step.kernel].name
        numbers = [*step.grid, *step.block, *step.cluster, step.smem, step.pdl]
        assert [int(x) for x in words[: len(numbers)]] == numbers
        assert [bytes.fromhex(x) for x in words[len(numbers) :]] == list(params)


@needs_compiler
def test_a_failed_load_leaves_nothing_loaded(loaded, tmp_path):
    """Where the driver refuses a kernel, every library is unloaded and the module is as it was."""
    (tmp_path / "gemm.h").write_text(loaded.header(), encoding="utf-8")
    (tmp_path / "main.c").write_text(
        '#include "gemm.h"\nint main(void) {\n  gemm_module m;\n  memset(&m, 255, sizeof m);\n'
        "  if (gemm_load(&m) != CUDA_ERROR_OUT_OF_MEMORY) return 1;\n"
        "  for (unsigned i = 0; i < sizeof m; ++i) if (((char *)&m)[i]) return 2;\n  return 0;\n}\n",
        encoding="utf-8",
    )
    compiled("gcc", "-shared", "-fPIC", FAKE, "-o", "libcuda.so", folder=tmp_path)
    compiled("gcc", "-std=c11", "main.c", "libcuda.so", "-o", "main", folder=tmp_path)
    log = tmp_path / "log"
    env = {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_CUDA_LOG": str(log), "FAKE_CUDA_FULL": "1"}
    assert subprocess.run([str(tmp_path / "main")], env=os.environ | env, check=False).returncode == 0
    assert log.read_text() == "unloaded\n"


@epi.define
def reduced(acc, *, scale: epi.Scalar):
    """A number on the device, a reduction that is finished, and one that is not."""
    h = acc * scale
    return epi.Output(d=h, top=epi.Max(h, axis=1), logs=epi.LogSumExp(h, axis=1, partial=True))


def test_every_tensor_of_a_call_is_described(tmp_path):
    """Numbers on the device and results of reductions, too, have their type, extents and alignment in a comment."""
    of = problem(100, 72, 64, epilogue=reduced, device_scalars=("scale",))
    gemm = cutegemm.build(GemmSpec(tile=Tile(128, 64, 64), epilogue=reduced), of)
    loaded = cutegemm.load(gemm.save(tmp_path / "x.cutegemm", [of]))
    text = loaded.header()
    parts = loaded.artefact.recipes[0].parts[1]
    assert parts > 1
    assert " * scale: one fp32 number in device memory, 4-byte aligned.\n" in text
    assert " * top: fp32, 1 x 100, contiguous, 4-byte aligned; max over columns.\n" in text
    assert (
        f" * logs: fp32, 2 x {parts} x 1 x 100, contiguous, 4-byte aligned; {parts} partial results, first"
        in text
    )


@needs_compiler
def test_the_example_compiles(tmp_path):
    """examples/cpp: the header that its script writes, compiled with the program."""
    subprocess.run(
        [sys.executable, str(EXAMPLE / "header.py"), str(tmp_path / "gemm.h")],
        check=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    compiled("g++", "-std=c++17", "-c", EXAMPLE / "gemm.cpp", "-o", "gemm.o", folder=tmp_path)


@pytest.mark.gpu
@needs_compiler
def test_the_example_runs(tmp_path):
    """examples/cpp on a GPU: the relative error is that of bf16."""
    subprocess.run(
        [sys.executable, str(EXAMPLE / "header.py"), str(tmp_path / "gemm.h")],
        check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip
    compiled("g++", "-std=c++17", EXAMPLE / "gemm.cpp", "-o", "gemm", "-l:libcuda.so.1", folder=tmp_path)
    done = subprocess.run([str(tmp_path / "gemm")], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "relative error" in done.stdout, done.stdout


def test_a_name_that_is_none_is_refused(loaded):
    """The prefix is a C identifier."""
    with pytest.raises(InputError, match="must be a C identifier"):
        loaded.header("my gemm")


@epi.define
def awkward(acc, *, new: epi.Row, new_: epi.Row, counters: epi.Scalar):
    """Inputs whose names C++ and the header have for other things."""
    return acc * counters + new + new_


@needs_compiler
@pytest.mark.parametrize(("compiler", "options"), [("gcc", "-std=c11"), ("g++", "-std=c++17")])
def test_names_that_c_has_taken_get_an_underscore(tmp_path, compiler, options):
    """Keywords, and names of the run's own arguments, are no members of the struct; an empty D launches nothing."""
    of, empty = (problem(m, 64, 64, epilogue=awkward) for m in (64, 0))
    gemm = cutegemm.build(GemmSpec(tile=Tile(128, 64, 64), epilogue=awkward), of)
    text = cutegemm.load(gemm.save(tmp_path / "x.cutegemm", [of, empty])).header()
    (tmp_path / "gemm.h").write_text(text)
    (tmp_path / "main.c").write_text(
        '#include "gemm.h"\nCUresult f(gemm_module *m, gemm_0_args *x, gemm_1_args *y);\n'
        "CUresult f(gemm_module *m, gemm_0_args *x, gemm_1_args *y) {\n"
        "  x->new__ = x->new_ = x->counters = x->workspace = 0, x->counters_ = 1.0f;\n"
        "  return gemm_load(m) ? CUDA_ERROR_UNKNOWN : gemm_0(m, x, 0) ? CUDA_SUCCESS : gemm_1(m, y, 0);\n}\n"
    )
    compiled(compiler, options, "-x", "c" if compiler == "gcc" else "c++", "-c", "main.c", "-o", "main.o",
             folder=tmp_path)  # fmt: skip


def test_a_header_of_no_kernels_is_refused(tmp_path):
    """C has no arrays of no elements, and there is nothing to launch."""
    of = problem(0, 64, 64)
    loaded = cutegemm.load(cutegemm.Gemm(GemmSpec(), of).save(tmp_path / "x.cutegemm", [of]))
    with pytest.raises(InputError, match="must hold one whose D is not empty"):
        loaded.header()
