# SPDX-License-Identifier: Apache-2.0
"""Checks whether two trees compile the same kernels, for changes that must not alter any PTX.

    python -m benchmarks.same_ptx --save FILE [--sample 120] [--seed 1]     # in the old tree
    python -m benchmarks.same_ptx --against FILE [--sample 20] [--seed 2]   # in the new tree
    python -m benchmarks.same_ptx --against FILE --diff ID                  # one kernel's difference

The kernels are those of the covering array's plans: GEMMs on tensor and CUDA cores, copies, finishing launches. The
file has each kernel's config and PTX, so other choices of the planner do not matter. A config that the new tree cannot
read is replaced by the plan of the same case. Compiling needs no GPU and takes about a second per kernel. Kernel names
(which contain module paths) and comments (the compiler's version) are not compared. If only the order of PTX or its
register numbers changed, ptxas makes the same machine code, and the kernel counts as the same.
"""

from __future__ import annotations

import argparse
import base64
import collections
import difflib
import hashlib
import json
import lzma
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.combinations.cover import Array
from benchmarks.combinations.factors import declared, shortened
from cutegemm import files, plan
from cutegemm.compiling.compiler import compile_config
from cutegemm.compiling.resources import machine_code
from cutegemm.config import Config, config_from_data
from cutegemm.errors import GemmError

Entry = dict[str, Any]
SAVE_EVERY = 20
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_LINES = re.compile(r"^\s*(//|\.file\b|\.loc\b|$).*\n?", re.MULTILINE)


def normalised(ptx: str) -> str:
    """PTX without comments and source lines, with its kernel renamed to `kernel`."""
    found = _ENTRY.search(ptx)
    return _LINES.sub("", ptx if found is None else ptx.replace(found[1], "kernel"))


def digest(text: str) -> str:
    """The digest that identifies a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def listed(seed: int, cases: int | None = None) -> Iterator[Entry]:
    """Every distinct kernel of the array's plans: its case, the step of the plan, and its config."""
    seen = set()
    for case in Array(seed).make(cases):
        made = declared(case)
        for step, x in enumerate(plan(made.spec, made.problem).steps):
            data = x.config.to_data()
            key = digest(json.dumps(data, sort_keys=True))[:12]
            if key not in seen:
                seen.add(key)
                yield {"id": key, "case": shortened(case), "step": step, "config": data}


def chosen(entries: list[Entry], count: int | None, seed: int) -> list[Entry]:
    """A sample of kernels with every family; all kernels without a count."""
    if count is None or count >= len(entries):
        return entries
    rng = random.Random(seed)
    families = collections.defaultdict(list)
    for x in rng.sample(entries, len(entries)):
        families[x["config"]["family"]].append(x)
    # one of each family, then random ones
    first = [x.pop() for x in families.values()][:count]
    rest = [x for family in families.values() for x in family]
    return first + rng.sample(rest, count - len(first))


def config_of(entry: Entry) -> tuple[Config, bool]:
    """An entry's config, and whether it had to be planned again.

    Raises:
        GemmError: the planner refuses the case.
    """
    try:
        return config_from_data(entry["config"]), False
    except (KeyError, TypeError, GemmError):
        made = declared(entry["case"])
        return plan(made.spec, made.problem).steps[entry["step"]].config, True


def packed(text: str) -> str:
    """Text, compressed for JSON."""
    return base64.b85encode(lzma.compress(text.encode())).decode()


def unpacked(text: str) -> str:
    """The text of `packed`."""
    return lzma.decompress(base64.b85decode(text)).decode()


def written(path: Path, held: dict[str, Entry]) -> None:
    """Replace a file, which another process may read."""
    files.replace(path, json.dumps(held).encode())


def compiled(config: Config) -> tuple[str, str]:
    """Compile a config; returns the normalized PTX and the digest of its machine code."""
    made = compile_config(config)
    return normalised(made.ptx), hashlib.sha256(machine_code(made.cubin)).hexdigest()


def save(path: Path, args: argparse.Namespace) -> int:
    """Compile a sample of the array's kernels and write their PTX; an existing file is completed."""
    if not path.exists():
        written(path, {x["id"]: x for x in listed(args.array)})
    held: dict[str, Entry] = json.loads(path.read_text())
    todo = [x for x in chosen(list(held.values()), args.sample, args.seed) if "code" not in x]
    print(f"{len(todo)} of {len(held)} kernels to compile", flush=True)
    for i, entry in enumerate(todo, 1):
        ptx, code = compiled(config_of(entry)[0])
        held[entry["id"]] = entry | {"digest": digest(ptx), "ptx": packed(ptx), "code": code}
        if i % SAVE_EVERY == 0 or i == len(todo):
            written(path, held)
            print(f"{i} of {len(todo)}", flush=True)
    return 0


def difference(entry: Entry, ptx: str) -> Iterable[str]:
    """Lines of a unified difference."""
    return difflib.unified_diff(
        unpacked(entry["ptx"]).splitlines(), ptx.splitlines(), "saved", "now", lineterm="", n=2
    )


def against(path: Path, args: argparse.Namespace) -> int:
    """Compile the kernels of a file again; returns 1 if one differs."""
    held: dict[str, Entry] = json.loads(path.read_text())
    if args.diff is not None:
        entry = held[args.diff]
        print("\n".join(difference(entry, compiled(config_of(entry)[0])[0])))
        return 0
    counts: collections.Counter[str] = collections.Counter()
    for entry in chosen([x for x in held.values() if "ptx" in x], args.sample, args.seed):
        name = f"{entry['id']} {entry['config']['family']}"
        try:
            config, again = config_of(entry)
            ptx, code = compiled(config)
        except GemmError as error:
            counts["refused"] += 1
            print(f"{name}: {error}\n    {json.dumps(entry['case'])}", flush=True)
            continue
        same = digest(ptx) == entry["digest"]
        if not same and code == entry.get("code"):
            counts["the same machine code"] += 1
            continue
        counts["the same" if same else "different"] += 1
        counts["planned again"] += again
        if not same:
            changed = sum(x[0] in "+-" for x in difference(entry, ptx)) - 2
            print(f"{name}: {changed} lines differ\n    {json.dumps(entry['case'])}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    return int(bool(counts["different"] or counts["refused"]))


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a kernel differs."""
    parser = command_line.parser("same_ptx", __doc__)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", type=Path, help="write this file, or complete it")
    what.add_argument("--against", type=Path, help="compare with this file")
    add("--sample", type=int, help="number of kernels")
    add("--seed", type=int, default=1, help="of the sample")
    add("--array", type=int, default=1, help="seed of the covering array")
    add("--diff", metavar="ID", help="show how one kernel differs")
    args = parser.parse_args(arguments)
    return save(args.save, args) if args.save else against(args.against, args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
