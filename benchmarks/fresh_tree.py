# SPDX-License-Identifier: Apache-2.0
"""The sources that a fresh run measures, and the seed derived from them.

    python -m benchmarks.fresh_tree        # the options of `benchmarks.fresh` on a machine without the repository

The sources are two git trees: `cutegemm/`, and `benchmarks/` without its results. The seed is the SHA-256 of their
hashes. So every change of a source draws new problems, and nobody can choose them.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, BENCHMARKS, RESULTS = "cutegemm", "benchmarks", "results"


class Trees(NamedTuple):
    """Hashes of git trees: the package, and the benchmarks without their results."""

    cutegemm: str
    benchmarks: str

    def __str__(self) -> str:
        return ",".join(self)

    @property
    def seed(self) -> str:
        """The seed of a reported run."""
        return hashlib.sha256(str(self).encode()).hexdigest()


def trees_of(commit: str = "HEAD", root: Path = ROOT) -> Trees:
    """The trees of a commit.

    Raises:
        ValueError: there is no repository, or no such commit.
    """
    entries = [line.split() for line in _git(root, "ls-tree", f"{commit}:{BENCHMARKS}").splitlines()]
    # a tree object holds "mode name\0hash" of each entry, without leading zeros of the mode
    kept = [
        f"{mode.lstrip('0')} {name}\0".encode() + bytes.fromhex(sha)
        for mode, _, sha, name in entries
        if name != RESULTS
    ]
    content = b"".join(kept)
    return Trees(
        _git(root, "rev-parse", f"{commit}:{PACKAGE}").strip(),
        hashlib.sha1(b"tree %d\0" % len(content) + content).hexdigest(),
    )


def changed(root: Path = ROOT) -> list[str]:
    """Files of the two trees that differ from the last commit.

    Raises:
        ValueError: there is no repository.
    """
    outside = f":(exclude){BENCHMARKS}/{RESULTS}"
    return _git(root, "status", "--porcelain", "--", PACKAGE, BENCHMARKS, outside).splitlines()


def committed(root: Path = ROOT) -> Trees:
    """The trees of the last commit.

    Raises:
        ValueError: there is no repository, or its sources differ from the last commit.
    """
    if files := changed(root):
        raise ValueError(f"commit these files first: {', '.join(files)}")
    return trees_of(root=root)


def commit_of(root: Path = ROOT) -> str:
    """The hash of the last commit.

    Raises:
        ValueError: there is no repository.
    """
    return _git(root, "rev-parse", "HEAD").strip()


def trees_from(text: str) -> Trees:
    """Parse the two hashes, the package's first.

    Raises:
        argparse.ArgumentTypeError: the text is malformed.
    """
    found = text.split(",")
    if len(found) != 2 or not all(re.fullmatch("[0-9a-f]{40}", x) for x in found):
        raise argparse.ArgumentTypeError(
            f"{text}: must be two hashes of 40 hexadecimal digits, one comma between"
        )
    return Trees(*found)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--trees`."""
    parser.add_argument(
        "--trees", type=trees_from, help="hashes of the measured trees, where there is no repository"
    )


def export(commit: str, folder: Path, root: Path = ROOT) -> None:
    """Write a commit's package and benchmarks, without results, into a folder.

    Raises:
        ValueError: there is no such commit.
    """
    outside = f":(exclude){BENCHMARKS}/{RESULTS}"
    packed = _run(root, "archive", commit, "--", PACKAGE, BENCHMARKS, outside)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)


def _git(root: Path, *words: str) -> str:
    return _run(root, *words).decode()


def _run(root: Path, *words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def main() -> int:
    """Print the options; returns 1 if sources differ from the last commit."""
    try:
        print(f"--trees {committed()} --commit {commit_of()}")
    except ValueError as error:
        print(f"python -m benchmarks.fresh_tree: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
