# SPDX-License-Identifier: Apache-2.0
"""Planning is pure: what it imports, and how fast."""

import subprocess
import sys

import pytest

PURE = (
    "cutegemm",
    "cutegemm.planning.planner",
    "cutegemm.spec",
    "cutegemm.planning.kernel_plan",
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


def test_importing_is_little_work():
    """`import cutegemm` loads at most 300 modules, of its own and Python's; platformdirs is all it takes along."""
    code = (
        "import sys; before = set(sys.modules); import cutegemm; new = set(sys.modules) - before;"
        "print(len(new)); print(*{x.split('.')[0] for x in new} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    count, packages = done.stdout.splitlines()
    assert int(count) <= 300 and set(packages.split()) == {"cutegemm", "platformdirs"}
