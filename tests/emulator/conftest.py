# SPDX-License-Identifier: Apache-2.0
"""Lets the emulator's tests import their harness by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
