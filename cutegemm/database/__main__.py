# SPDX-License-Identifier: Apache-2.0
"""`python -m cutegemm.database show | export FILE | import FILE`: what has been tuned on this machine.

The file that ships is made by `python -m cutegemm.database export cutegemm/database/shipped.json`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from cutegemm.database import Database, export, import_
from cutegemm.errors import InputError, field_error


def main(arguments: list[str]) -> int:
    """Run the command; returns 2 if a file cannot be read or written, and 1 if the reader closed the pipe."""
    parser = argparse.ArgumentParser(prog="python -m cutegemm.database", description=__doc__)
    parser.add_argument("--database", type=Path, help="another file than the user's")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("show", "list the entries"),
        ("export", "write them to FILE"),
        ("import", "take those of FILE"),
    ):
        command = commands.add_parser(name, help=text)
        if name != "show":
            command.add_argument("file", type=Path)
        if name == "export":
            command.add_argument("--gpu", help='only of this one, such as "NVIDIA H200, 132 SMs"')
    args = parser.parse_args(arguments)
    database = Database(args.database)
    try:
        if args.command != "import" and args.database is not None and not args.database.exists():
            raise field_error(InputError, "--database", str(args.database), "must be a file that is there")
        _run(args, database)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # the reader closed the pipe; the rest of the output goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (InputError, OSError) as error:
        text = getattr(error, "strerror", None) or str(error)
        print(f"python -m cutegemm.database: {text}", file=sys.stderr)
        return 2
    return 0


def _run(args: argparse.Namespace, database: Database) -> None:
    if args.command == "export":
        print(f"{export(args.file, database, gpu=args.gpu)} entries written to {args.file}")
    elif args.command == "import":
        print(f"{import_(args.file, database)} entries taken into {database.path}")
    else:
        entries = database.entries()
        if not entries:
            print(f"no entries in {database.path}")
        for key, entry in entries.items():
            extents = " x ".join(map(str, key.extents[:3])) + f", batch {key.extents[3]}"
            print(f"{key.gpu}; {extents}; {key.kind}; {key.spec}: {entry.us:,.1f} us, {dict(entry.fields)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
