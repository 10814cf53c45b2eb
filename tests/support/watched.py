# SPDX-License-Identifier: Apache-2.0
"""How the emulator watches a run whose counts no test reads: counting takes a third of a run."""

from cutegemm.emulator import Options

RACES = Options(races=True)
