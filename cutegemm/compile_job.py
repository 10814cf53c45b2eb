# SPDX-License-Identifier: Apache-2.0
"""`python -m cutegemm.compile_job`: compile a JSON list of configs from standard input into the disk cache."""

from __future__ import annotations

import json
import sys

from cutegemm import cache
from cutegemm.config import config_from_data

if __name__ == "__main__":
    for data in json.load(sys.stdin):
        cache.artifact(config_from_data(data))
        sys.stdout.write(cache.DONE)
        sys.stdout.flush()
