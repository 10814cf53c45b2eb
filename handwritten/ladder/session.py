# SPDX-License-Identifier: Apache-2.0
"""Checks and measurements on a GPU, saved to a file after each step and resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cutegemm.errors import GemmError, InputError, check
from cutegemm.files import replace
from handwritten.ladder import measure, report, twins, verify
from handwritten.ladder.names import SPLIT_K_SHAPE, one_part
from handwritten.ladder.options import Options, Shape
from handwritten.ladder.stage import Stage

SCHEMA = 1
EXIT_BROKEN = 3  # the CUDA context is lost; calling again resumes
UNFINISHED = "did not finish"
LARGE = 2 * 4096**3  # M * N * K above which stages without reuse take minutes


def _load(path: Path) -> dict[str, Any]:
    """Read the file of an earlier run.

    Raises:
        InputError: this command did not write the file.
    """
    try:
        saved = json.loads(path.read_text("utf-8"))
    except ValueError:
        saved = None
    parts = {"schema", "environment", "checks", "rows"}
    fits = isinstance(saved, dict) and parts <= saved.keys() and saved["schema"] == SCHEMA
    check(
        fits,
        InputError,
        f"--json {path}: must be absent, or a file that this command wrote (schema {SCHEMA})",
    )
    return dict(saved)


class Session:
    """One run of the command.

    Attributes:
        document: {schema, environment, checks by stage, rows}, the contents of the file.
    """

    def __init__(self, options: Options, console: Console) -> None:
        self.options, self.console = options, console
        self.document: dict[str, Any] = {"schema": SCHEMA, "environment": {}, "checks": {}, "rows": []}
        environment = measure.environment(options.commit)
        if options.json and options.json.exists():
            saved = _load(options.json)
            if saved["environment"].get("sources") == environment["sources"]:
                self.document = saved  # results of other sources are dropped
        self.document["environment"] = environment

    @property
    def failed(self) -> list[str]:
        """Keys of the chosen stages that are wrong or broken."""
        keys = {stage.key for stage in self.options.stages}
        return [key for key, check in self.document["checks"].items() if check["failure"] and key in keys]

    def save(self) -> None:
        """Replace the file."""
        if self.options.json:
            self.options.json.parent.mkdir(parents=True, exist_ok=True)
            replace(self.options.json, f"{json.dumps(self.document, indent=1)}\n".encode())

    def leave(self, message: str) -> None:
        """Save and exit at once, since freeing a tensor may block after a lost context."""
        self.save()
        self.console.print(message, markup=False)
        os._exit(EXIT_BROKEN)

    def check(self, stage: Stage) -> None:
        """Verify a stage once; its record is "did not finish" until it ends."""
        checks = self.document["checks"]
        if stage.key in checks:
            return
        checks[stage.key] = {"error": None, "failure": UNFINISHED}
        self.save()
        try:
            checks[stage.key] = {"error": verify.verify(stage), "failure": None}
        except verify.WrongResult as error:
            checks[stage.key]["failure"] = str(error)
        except verify.Hang as error:
            checks[stage.key]["failure"] = f"hang: {error}"
            self.leave(f"{stage.key}: hang")
        except (RuntimeError, GemmError) as error:
            checks[stage.key]["failure"] = f"{type(error).__name__}: {error}"
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                self.leave(f"{stage.key}: {error}")
        self.save()
        if checks[stage.key]["failure"]:
            self.console.print(f"{stage.key}: {checks[stage.key]['failure']}", style="red", markup=False)

    def time(self, dtype: str, shape: Shape) -> None:
        """Time every correct stage that supports the problem and has not been timed."""
        case = measure.Case(dtype, *shape, self.options.beta)
        problem = report.of_problem(self.document["rows"], *shape, case.beta)
        done = [row for row in problem if row["dtype"] == dtype]
        names = {row["contender"] for row in done}
        calls = {name: call for name, call in self._calls(case, shape).items() if name not in names}
        if not calls:
            return
        if self.options.builder:
            timed = [stage for stage in self.options.stages if stage.key in calls]
            try:
                calls |= twins.builder_calls(timed, dtype, shape, case.beta)
            except GemmError as error:
                self.console.print(f"builder left out of {dtype} {shape}: {error}", markup=False)
        rows = measure.measure(case, calls, self.options.rounds)
        self.document["rows"] = [row for row in self.document["rows"] if row not in done]
        self.document["rows"] += done + [row for row in rows if row["contender"] not in names]
        self.save()

    def _calls(self, case: measure.Case, shape: Shape) -> dict[str, measure.Call]:
        """Return the calls of all correct stages that support the problem; split-K stages also with one split."""
        timed = [stage for stage in self.options.stages if self._timed(stage, case.dtype, shape)]
        calls = {stage.key: measure.stage_call(stage, case) for stage in timed}
        if shape == SPLIT_K_SHAPE:
            for stage in timed:
                if stage.number in (21, 22):
                    calls[one_part(stage.key)] = measure.stage_call(stage, case, splits=1)
        return calls

    def _timed(self, stage: Stage, dtype: str, shape: Shape) -> bool:
        if dtype not in stage.dtypes or self.document["checks"][stage.key]["failure"]:
            return False
        slow = stage.intensity(dtype) < 1 and shape[0] * shape[1] * shape[2] > LARGE
        return not slow and stage.takes(dtype, *shape)
