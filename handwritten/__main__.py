# SPDX-License-Identifier: Apache-2.0
"""`python -m handwritten`: the ladder on this machine; `--help` lists the options."""

import sys

from handwritten.ladder.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
