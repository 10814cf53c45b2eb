# SPDX-License-Identifier: Apache-2.0
"""`python -m cutegemm.compile_job`: compile the config given as JSON on standard input into the disk cache."""

from __future__ import annotations

import json
import sys

from cutegemm import cache
from cutegemm.config import config_from_data

if __name__ == "__main__":
    cache.artifact(config_from_data(json.load(sys.stdin)))
