# SPDX-License-Identifier: Apache-2.0
"""Planning is pure: what it imports, and how fast."""

import os
import subprocess
import sys

import pytest

PURE = (
    "cutegemm",
    "cutegemm.planning.planner",
    "cutegemm.spec",
    "cutegemm.planning.text",
    "cutegemm.layouts",
)


@pytest.mark.parametrize("module", PURE)
def test_planning_imports_neither_torch_nor_the_dsl(module):
    """Specs, plans and layouts work where torch and the DSL are not installed."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'cutlass', 'tvm_ffi', 'llvmlite')));"
        f"import {module}; from cutegemm import GemmSpec, plan, problem;"
        "print(plan(GemmSpec(), problem(4096, 4096, 4095)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "relayout a" in done.stdout, done.stderr


def test_importing_is_fast(tmp_path):
    """`import cutegemm` takes at most 0.3 s of CPU, best of five once compiled; platformdirs is all it takes along."""
    code = (
        "import sys, time; before, t = set(sys.modules), time.process_time(); import cutegemm;"
        "print(time.process_time() - t);"
        "print(*{x.split('.')[0] for x in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    # byte code is kept, whatever this process does with its own
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment
        )
        for _ in range(6)
    ]
    seconds, modules = zip(*(run.stdout.splitlines() for run in runs))
    assert min(map(float, seconds[1:])) <= 0.3
    assert set(modules[0].split()) == {"cutegemm", "platformdirs"}
