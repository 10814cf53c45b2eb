# SPDX-License-Identifier: Apache-2.0
"""The directories of persistent files: $CUTEGEMM_CACHE_DIR, or the user's own directories."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The directory of files that can be recreated, such as compiled kernels."""
    return _chosen() or Path(platformdirs.user_cache_dir("cutegemm"))


def data_folder() -> Path:
    """The directory of files that take long to recreate, such as measurements."""
    return _chosen() or Path(platformdirs.user_data_dir("cutegemm"))


def _chosen() -> Path | None:
    """$CUTEGEMM_CACHE_DIR, in which ~ is the home directory; None if it is not set."""
    given = os.environ.get("CUTEGEMM_CACHE_DIR")
    return Path(os.path.expanduser(given)) if given else None
