# SPDX-License-Identifier: Apache-2.0
"""`load`: the kernels of an artefact, run without planning, compiling or the DSL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cutegemm.aot.artefact import Artefact, Recipe, checked_path, read
from cutegemm.aot.header import header
from cutegemm.checks import keywords
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import needing
from cutegemm.gemm import eager
from cutegemm.gemm.gemm import Runs
from cutegemm.problems import Problem
from cutegemm.running.arguments.call import Memo
from cutegemm.running.arguments.named import Signature, Unprepared
from cutegemm.spec import GemmSpec

if TYPE_CHECKING:
    from cutegemm.running.backends.replayed import Replay
    from cutegemm.running.kind import Prepared


class Loaded(Runs):
    """The kernels of an artefact. `run` takes the arguments of `Gemm.run`, for the artefact's problems.

    Attributes:
        artefact: contents of the file: spec, problems, kernels, GPU, versions.
        spec: of the saved `Gemm`.
    """

    def __init__(self, artefact: Artefact) -> None:
        self.artefact, self.spec = artefact, artefact.spec
        self._fused = Signature(self.spec.epilogue) if isinstance(self.spec.epilogue, Graph) else None
        self._kinds: Memo[Prepared] = Memo()
        self._replay: Replay | None = None
        eager.leave(Runs.run)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that the artefact has kernels for."""
        return tuple(x.problem for x in self.artefact.recipes)

    def explain(self) -> str:
        """The plan of every problem as text, as it was saved."""
        return "\n\n".join(
            f"{x.plan}\nchosen by  {x.chosen_by or 'the model'}" for x in self.artefact.recipes
        )

    def header(self, name: str = "gemm") -> str:
        """The artefact as one header for C11 and C++17, which launches through the CUDA driver API (`aot.header`).

        Args:
            name: prefix of everything that it defines.

        Raises:
            InputError: the name is not a C identifier.
        """
        return header(self.artefact, name)

    def _first(self, call: Unprepared, backend: Any, workspace: Any) -> Any:
        with needing():
            # these import torch
            from cutegemm.running import run as path
            from cutegemm.running.backends.replayed import Replay

        eager.leave(Runs.run)
        if self._replay is None:
            self._replay = Replay(self.artefact)
        replay = self._replay

        def planner(_: GemmSpec, problem: Problem, device: Any) -> Recipe:
            return replay.recipe(problem, device)

        return path.first(self.spec, self._kinds, call, backend, workspace, planner, replay.make)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and unpickled objects load the kernels onto a device on the first run."""
        return type(self), (self.artefact,)

    def __repr__(self) -> str:
        return f"<artefact of {self.spec}, {len(self.artefact.recipes)} problem(s), for {self.artefact.gpu}>"


@keywords()
def load(path: str | os.PathLike[str]) -> Loaded:
    """Load an artefact that `Gemm.save` wrote. Nothing is planned or compiled, and the DSL is not needed.

    Loading runs native code: the kernels of the file run on the GPU with the rights of this process. Load only files
    that you trust. The checksums detect damage, not malice.

    Args:
        path: of the file.

    Raises:
        InputError: the file is missing, truncated, changed, not an artefact, or of another format.
    """
    return Loaded(read(checked_path(path)))


__all__ = ["Loaded", "load"]
