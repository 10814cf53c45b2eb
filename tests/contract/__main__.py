# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.contract SEED ...`: the calls of these seeds, each named before it is made."""

import sys

from tests.support.contract import run_seed

for text in sys.argv[1:]:
    run_seed(int(text), print)
    print(f"seed {text}: every call keeps the contract")
