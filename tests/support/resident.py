# SPDX-License-Identifier: Apache-2.0
"""How much memory this process holds, and giving back what it no longer needs."""

import ctypes
import gc
import os


def resident() -> int:
    """MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def give_back() -> None:
    """Collect cycles, and return free pages to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
