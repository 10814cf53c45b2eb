# SPDX-License-Identifier: Apache-2.0
"""Where files are kept from process to process: under $CUTEGEMM_CACHE_DIR, or in the user's own folders."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from cutegemm.errors import InputError, field_error


def cache_folder() -> Path:
    """The folder of what can be made again, such as compiled kernels."""
    return _chosen() or Path(platformdirs.user_cache_dir("cutegemm"))


def data_folder() -> Path:
    """The folder of what cannot be made again at once, such as measurements."""
    return _chosen() or Path(platformdirs.user_data_dir("cutegemm"))


def _chosen() -> Path | None:
    """$CUTEGEMM_CACHE_DIR, in which ~ is a home directory, as in a shell; None where it is not set.

    Raises:
        InputError: nobody here has the name that follows ~.
    """
    given = os.environ.get("CUTEGEMM_CACHE_DIR")
    if not given:
        return None
    found = os.path.expanduser(given)
    if found.startswith("~"):
        rule = "begins with the home directory of a user who does not exist"
        raise field_error(InputError, "CUTEGEMM_CACHE_DIR", given, rule, f"./{given}")
    return Path(found)
