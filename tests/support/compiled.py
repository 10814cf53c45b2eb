# SPDX-License-Identifier: Apache-2.0
"""One small kernel, compiled once, and a cache directory of a test's own that holds it."""

import dataclasses
import shutil
from pathlib import Path

from cutegemm import GemmSpec, Tile, problem
from cutegemm.compiling import kernel_cache
from cutegemm.planning.planner import plan

CONFIG = plan(GemmSpec(tile=Tile(128, 64, 64)), problem(512, 512, 512)).config
OTHER = dataclasses.replace(CONFIG, stages=2)


def isolated(monkeypatch, folder: Path) -> Path:
    """Empty the memory and move the cache to `folder`, with `CONFIG`'s entry in it; returns the entry's path."""
    kernel_cache.artifact(CONFIG)
    shared = kernel_cache.entry(CONFIG)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(folder))
    monkeypatch.setattr(kernel_cache, "_MEMORY", {})
    path = kernel_cache.entry(CONFIG)
    path.parent.mkdir(parents=True, mode=0o700)
    shutil.copy(shared, path)
    return path
