# SPDX-License-Identifier: Apache-2.0
"""A kernel's canonicalised MLIR as the DSL traces it, from a process `python -m cutegemm.compiling.ir FILE`.

The DSL reads its options when it is first imported, so each kernel needs a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cutegemm.arch import sm90 as hw
from cutegemm.compiling import compiler
from cutegemm.config import Config, config_from_data
from cutegemm.errors import CompileError

KEEP = {"CUTE_DSL_KEEP": "ir", "CUTE_DSL_ARCH": hw.ARCH}


def ir(config: Config) -> str:
    """The MLIR of a config's kernel; takes seconds, since it is not cached.

    Raises:
        CompileError: it does not compile; its text has the last line of the DSL's output.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.mlir"
        done = subprocess.run(
            [sys.executable, "-m", "cutegemm.compiling.ir", str(path)],
            input=json.dumps(config.to_data()),
            env=os.environ | KEEP | {"CUTE_DSL_DUMP_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not path.exists():
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise CompileError(f"the DSL gives no IR: {lines[-1]}")
        return path.read_text("utf-8")


def main(target: str) -> None:
    """Trace the config on standard input, and write its MLIR."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream

    driver, arguments = compiler.driver_of(config_from_data(json.load(sys.stdin)))
    options = f"--enable-tvm-ffi --dump-dir {Path(target).parent} --gpu-arch {hw.ARCH}"
    compiled = cute.compile(driver, *arguments, make_fake_stream(), options=options)
    Path(target).write_text(compiled.__mlir__, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
