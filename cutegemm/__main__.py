# SPDX-License-Identifier: Apache-2.0
"""`python -m cutegemm` is the command `cutegemm`."""

from cutegemm.cli.app import main

if __name__ == "__main__":
    main()
