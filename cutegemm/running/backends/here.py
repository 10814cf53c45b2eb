# SPDX-License-Identifier: Apache-2.0
"""The current GPU. Importing this module does not import torch."""

from __future__ import annotations

import sys

from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT


def device() -> Device:
    """The record of torch's current GPU, if torch is loaded and has a Hopper GPU; else that of the H200."""
    if not hasattr(sys.modules.get("torch"), "cuda"):
        return DEFAULT
    # imports torch
    from cutegemm.running.backends.launcher import current_device

    return current_device()[1]
