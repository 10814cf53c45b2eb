# SPDX-License-Identifier: Apache-2.0
"""The options and the results file of probes whose results depend on no time; they run on a CPU as well."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import environment, results
from benchmarks.results import Row


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Add --device, --out and --commit, and read the command line."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="")
    args = parser.parse_args(arguments)
    if args.out and not args.commit:
        parser.error("--out needs --commit")
    return args


def save(args: argparse.Namespace, rows: list[Row]) -> None:
    """Write the rows with their environment to the file that the command line names, if it names one."""
    if args.out:
        head = {"schema": results.SCHEMA, "environment": environment.described(args.commit, args.device)}
        results.save(args.out, head | {"rows": rows})
