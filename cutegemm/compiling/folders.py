# SPDX-License-Identifier: Apache-2.0
"""Where files are kept from process to process: under $CUTEGEMM_CACHE_DIR, or in the user's own folders."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The folder of what can be made again, such as compiled kernels."""
    return _chosen() or Path(platformdirs.user_cache_dir("cutegemm"))


def data_folder() -> Path:
    """The folder of what cannot be made again at once, such as measurements."""
    return _chosen() or Path(platformdirs.user_data_dir("cutegemm"))


def _chosen() -> Path | None:
    """$CUTEGEMM_CACHE_DIR, in which ~ is the home directory, as in a shell; None where it is not set."""
    given = os.environ.get("CUTEGEMM_CACHE_DIR")
    return Path(os.path.expanduser(given)) if given else None
