# SPDX-License-Identifier: Apache-2.0
"""Drops the entries of a tuned file whose kernels are those that the cost model alone chooses.

    python -m benchmarks.prune                 # rewrites cutegemm/database/shipped.json
    python -m benchmarks.prune --expired       # also drops entries whose kernel has changed since it was measured
    python -m benchmarks.prune --check         # writes nothing; exits 1 if an entry would go

Run it after a change of the planner or of its rates. An entry and the model are equal if all their launches have equal
kernels and visit tiles in the same order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks import command_line
from cutegemm import GemmSpec, Problem, problem
from cutegemm.arch.records import RECORDS
from cutegemm.database.entry import Entry, Key, gpu_text, key_of, refined
from cutegemm.database.exchange import SHIPPED, read, write
from cutegemm.errors import InputError, field_error
from cutegemm.planning.planner import plan
from cutegemm.plans.kernel_plan import KernelPlan

DEVICES = {gpu_text(x): x for x in RECORDS}
EQUAL, EXPIRED = "the model chooses the same kernels", "its kernel has changed since it was measured"


def asked(key: Key) -> tuple[GemmSpec, Problem]:
    """The spec and the problem of a key; alpha A B without an epilogue, with leading dimensions as TMA takes them.

    Raises:
        InputError: the key is of another problem, or of a GPU without a record.
    """
    (a_type, a_major), (_, b_major) = (x.split(" ")[1:3] for x in key.kind.split("; ")[:2])
    majors = ("k" if a_major == "row-major" else "m") + ("n" if b_major == "row-major" else "k")
    m, n, k, batch = key.extents
    of = problem(m, n, k, batch=batch, dtype=a_type, majors=majors)
    spec = GemmSpec(**json.loads(key.spec))
    if key.gpu not in DEVICES or key_of(spec, of, DEVICES[key.gpu]) != key:
        rule = "must be a plain problem on a GPU with a record"
        raise field_error(InputError, "key", key, rule)
    return spec, of


def reason(key: Key, entry: Entry, expired: bool = False) -> str | None:
    """Why an entry goes, or None if it stays.

    Args:
        key, entry: of the file.
        expired: whether an entry goes whose kernel has changed.

    Raises:
        GemmError: the entry has no plan.
    """
    (spec, of), device = asked(key), DEVICES[key.gpu]
    tuned = plan(refined(spec, entry.fields), of, device)
    if _kernels(plan(spec, of, device)) == _kernels(tuned):
        return EQUAL
    if expired and tuned.config is not None and entry.expired(tuned.config):
        return EXPIRED
    return None


def _kernels(of: KernelPlan) -> list[object]:
    """The configs of a plan's launches, and the order in which they visit tiles."""
    return [(step.config, getattr(step, "raster", None)) for step in of.steps]


def pruned(entries: Mapping[Key, Entry], expired: bool = False) -> tuple[dict[Key, Entry], dict[Key, str]]:
    """The entries that stay, and why each other one goes."""
    gone = {key: why for key, entry in entries.items() if (why := reason(key, entry, expired)) is not None}
    return {key: entry for key, entry in entries.items() if key not in gone}, gone


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if --check found an entry that would go."""
    parser = command_line.parser("prune", __doc__)
    parser.add_argument(
        "--file", type=Path, default=SHIPPED, help="a file that cutegemm.database.export wrote"
    )
    parser.add_argument("--expired", action="store_true", help="also drop entries whose kernel has changed")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if an entry would go")
    args = parser.parse_args(arguments)
    kept, gone = pruned(read(args.file), args.expired)
    for key, why in gone.items():
        print(f"{key.gpu}; {' x '.join(map(str, key.extents))}; {key.kind}: {why}")
    if not args.check:
        write(args.file, kept)
    print(f"{len(gone)} of {len(gone) + len(kept)} entries {'would go' if args.check else 'dropped'}")
    return int(args.check and bool(gone))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
