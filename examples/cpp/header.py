# SPDX-License-Identifier: Apache-2.0
"""Write the C header that gemm.cpp includes; needs no GPU.

python examples/cpp/header.py gemm.h
"""

import sys
import tempfile
from pathlib import Path

import cutegemm

of = cutegemm.problem(128, 64, 256)
with tempfile.TemporaryDirectory() as folder:
    path = cutegemm.build(cutegemm.GemmSpec(), of).save(Path(folder) / "gemm.cutegemm", [of])
    Path(sys.argv[1]).write_text(cutegemm.load(path).header("gemm"), "utf-8")
