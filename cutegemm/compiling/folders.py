# SPDX-License-Identifier: Apache-2.0
"""The directories of persistent files: $CUTEGEMM_CACHE_DIR, or the user's own directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

from cutegemm.errors import InputError, field_error


def cache_folder() -> Path:
    """The directory of files that can be recreated, such as compiled kernels."""
    return _chosen() or _at_home(platformdirs.user_cache_dir)


def data_folder() -> Path:
    """The directory of files that take long to recreate, such as measurements."""
    return _chosen() or _at_home(platformdirs.user_data_dir)


def _at_home(folder_of: Callable[[str], str]) -> Path:
    """A directory of the user's.

    Raises:
        InputError: the user has no home directory, as in a container without $HOME.
    """
    try:
        found = folder_of("cutegemm")
    except RuntimeError:
        found = "~"
    # versions of platformdirs differ: some raise, some keep the ~
    if found.startswith("~"):
        rule = "must name a directory, because the user has no home directory"
        raise field_error(InputError, "CUTEGEMM_CACHE_DIR", "", rule, "/var/tmp/cutegemm")
    return Path(found)


def _chosen() -> Path | None:
    """$CUTEGEMM_CACHE_DIR, in which ~ is a home directory, as in a shell; None if it is not set.

    Raises:
        InputError: no user has the name that follows ~.
    """
    given = os.environ.get("CUTEGEMM_CACHE_DIR")
    if not given:
        return None
    found = os.path.expanduser(given)
    if found.startswith("~"):
        rule = "begins with the home directory of a user who does not exist"
        raise field_error(InputError, "CUTEGEMM_CACHE_DIR", given, rule, f"./{given}")
    return Path(found)
