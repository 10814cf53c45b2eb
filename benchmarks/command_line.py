# SPDX-License-Identifier: Apache-2.0
"""What the command lines of the benchmarks share."""

from __future__ import annotations

import argparse


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m benchmarks.NAME`; its help shows the description as it is laid out."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
