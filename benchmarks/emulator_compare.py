# SPDX-License-Identifier: Apache-2.0
"""Compares two checkouts of the emulator: final memory, findings, counters and coverage of all launches must agree.

    python -m benchmarks.emulator_compare OLD_CHECKOUT tests/emulator/watch tests/emulator/test_own_kernels.py

runs these tests in both checkouts and logs every launch, including faults and deadlocks; random draws are seeded. Exits
with 1 and shows the first difference, if there is one. Host addresses are not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOG = "CUTEGEMM_EMULATOR_LOG"  # environment variable: path of the log
ADDRESS = re.compile(r"0x[0-9a-f]{7,}|(?<=base=)\d{7,}")


class Recorder:
    """A pytest plugin that logs each test's name and its launches."""

    def __init__(self, path: str) -> None:
        self.log = open(path, "w")
        self.launching: Any = importlib.import_module("cutegemm.emulator.launching.launch")
        self.run, self.report = self.launching.Executor.run, vars(self.launching)["_report"]
        self.launching.Executor.run = lambda executor: self.watched(executor)
        vars(self.launching)["_report"] = lambda executor, rules: self.reported(executor, rules)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Log the start of a test."""
        self.write(f"test {item.nodeid}")

    def write(self, text: str) -> None:
        """Log a line without addresses."""
        self.log.write(ADDRESS.sub("ADDRESS", text).replace("\n", "\\n") + "\n")
        self.log.flush()

    def watched(self, executor: Any) -> None:
        """Run a launch, and log an error that stops it, with the findings before."""
        try:
            self.run(executor)
        except Exception as e:
            self.write(f"stopped: {e} {executor.findings()}")
            raise

    def reported(self, executor: Any, rules: Any) -> Any:
        """The report of a launch, logged with hashes of memory."""
        made = self.report(executor, rules)
        # a workspace is uninitialized
        regions = [r for r in executor.device.memory.regions if r.name != "workspace"]
        memory = sorted(hashlib.md5(r.data[r.first : r.size].tobytes()).hexdigest() for r in regions)
        sizes = [len(block.code) for block in executor.device.program.blocks]
        by_warp = {w: sum(n * m for n, m in zip(ran, sizes)) for w, ran in executor.counts.by_warp.items()}
        counted = [sorted(x.items()) for x in (made.instructions, by_warp, made.sums)]
        self.write(
            f"ran: {memory} {made.findings} {made.suppressed} {counted} {made.coverage} {made.printed}"
        )
        return made


def record(checkout: Path, log: Path, tests: list[str]) -> None:
    """Run tests of a checkout with the recorder."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), LOG: str(log)}
    command = [sys.executable, str(Path(__file__).resolve()), "--record", *tests]
    if subprocess.run(command, cwd=checkout, env=environment).returncode > 1:  # 1: some tests failed
        sys.exit(f"{checkout}: the tests did not run")


def main() -> int:
    """Record both checkouts and compare."""
    if sys.argv[1:2] == ["--record"]:
        import pytest

        options = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *sys.argv[2:]]
        return int(pytest.main(options, plugins=[Recorder(os.environ[LOG])]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("old", type=Path, help="a checkout to compare with")
    parser.add_argument("tests", nargs="+", help="tests, as arguments of pytest")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, name) for name in ("old", "new")]
        for checkout, log in zip(
            (given.old.resolve(), Path(__file__).resolve().parents[1]), logs, strict=True
        ):
            record(checkout, log, given.tests)
        old, new = (log.read_text().splitlines() for log in logs)
    for number, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            print(f"line {number} differs\n  old {one[:2000]}\n  new {other[:2000]}")
            return 1
    if len(old) != len(new):
        print(f"{len(old)} lines and {len(new)}")
        return 1
    print(f"the same: {sum(line.startswith(('ran', 'stopped')) for line in new)} launches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
