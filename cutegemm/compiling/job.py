# SPDX-License-Identifier: Apache-2.0
"""`python -m cutegemm.compiling.job`: compile a JSON list of configs from standard input into the disk cache."""

from __future__ import annotations

import json
import sys

from cutegemm.compiling import jobs, kernel_cache
from cutegemm.config import config_from_data
from cutegemm.errors import CompileError, GemmError


def main() -> int:
    """Compile what standard input lists; 1 after the first that does not compile."""
    # tvm_ffi imports torch where it can, which takes two seconds and which no compiler needs
    sys.modules["torch"] = None  # type: ignore[assignment]
    for data in json.load(sys.stdin):
        try:
            kernel_cache.artifact(config_from_data(data))
        except GemmError as error:
            said = error.rule if isinstance(error, CompileError) else str(error)
            sys.stdout.write(f"{jobs.FAILED}{json.dumps(said)}\n")
            return 1
        sys.stdout.write(jobs.DONE)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
