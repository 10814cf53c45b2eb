# SPDX-License-Identifier: Apache-2.0
"""Planning is pure: what it imports, and how fast."""

import subprocess
import sys

import pytest

PURE = (
    "cutegemm",
    "cutegemm.planning.planner",
    "cutegemm.spec",
    "cutegemm.plans.kernel_plan",
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
    """`import cutegemm` loads two of its own modules, few of Python's and nobody else's; names load on first use."""
    code = (
        "import sys; before = set(sys.modules); import cutegemm; new = set(sys.modules) - before;"
        "print(len(new)); print(*[x for x in new if x.split('.')[0] not in sys.stdlib_module_names])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    count, packages = done.stdout.splitlines()
    assert int(count) <= 60 and set(packages.split()) == {"cutegemm", "cutegemm.errors"}
