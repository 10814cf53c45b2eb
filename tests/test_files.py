# SPDX-License-Identifier: Apache-2.0
"""Files are replaced as a whole or not at all."""

import os
import stat

import pytest

from cutegemm import files
from cutegemm.errors import InputError


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o077, 0o600)])
def test_a_file_is_replaced_and_has_the_users_permissions(umask, mode, tmp_path):
    """The new bytes alone lie there, readable by whom the process's umask lets read."""
    path = tmp_path / "x"
    path.write_bytes(b"before, and longer")
    before = os.umask(umask)
    try:
        files.replace(path, b"after")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"after" and stat.S_IMODE(path.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_alone(error, tmp_path, monkeypatch):
    """A full disk or Ctrl-C before the rename leaves the old bytes and no part of the new ones."""

    def fail(source, target):
        assert source.read_bytes() == b"after" and source.parent == tmp_path
        raise error

    path = tmp_path / "x"
    path.write_bytes(b"before")
    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(type(error)):
        files.replace(path, b"after")
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    """The error has the caller's name of the argument and of the file, not that of the part."""
    path = tmp_path / "none" / "x"
    with pytest.raises(InputError) as error:
        files.replace_given("file", path, b"")
    assert str(error.value) == f"file='{path}': must be a file that can be written: No such file or directory"
