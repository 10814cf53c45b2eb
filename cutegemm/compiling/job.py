# SPDX-License-Identifier: Apache-2.0
"""`python -m cutegemm.compiling.job`: compile a JSON list of configs from standard input into the disk cache."""

from __future__ import annotations

import json
import sys

from cutegemm.compiling import jobs, kernel_cache
from cutegemm.config import config_from_data
from cutegemm.errors import CompileError, GemmError


def main() -> int:
    """Compile the configs on standard input; 1 after the first that does not compile."""
    # tvm_ffi imports torch if it can, which takes two seconds and which the compiler does not need
    sys.modules["torch"] = None  # type: ignore[assignment]
    for data in json.load(sys.stdin):
        try:
            kernel_cache.artifact(config_from_data(data))
        except GemmError as error:
            message = error.rule if isinstance(error, CompileError) else str(error)
            sys.stdout.write(f"{jobs.FAILED}{json.dumps(message)}\n")
            return 1
        sys.stdout.write(jobs.DONE)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
