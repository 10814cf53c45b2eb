# SPDX-License-Identifier: Apache-2.0
"""Where kernels would run now. Imports no torch."""

from __future__ import annotations

import sys

from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT


def device() -> Device:
    """The figures of torch's current GPU, where torch is loaded and has a Hopper GPU; else those of the H200."""
    if not hasattr(sys.modules.get("torch"), "cuda"):
        return DEFAULT
    # imports torch
    from cutegemm.running.backends.launcher import current_device

    return current_device()[1]
