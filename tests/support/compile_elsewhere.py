# SPDX-License-Identifier: Apache-2.0
"""Compiling in a helper process: the DSL keeps a few MB of each kernel that a process compiles, for good."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import sys
from collections.abc import Callable

from cutegemm.compiling import compiler
from cutegemm.compiling.compiler import Artifact
from cutegemm.config import Config, config_from_data
from cutegemm.errors import CompileError
from cutegemm.families import FAMILIES

# kernels after which a helper ends
MOST = 200
SHIPPED = frozenset(FAMILIES)


def _without_torch() -> None:
    """In the helper, at its start: tvm_ffi imports torch where it can, which takes two seconds."""
    sys.modules["torch"] = None


def _compiled(data: dict) -> Artifact | str:
    """In the helper: a kernel, or the rule that refused it."""
    try:
        return compiler.compile_config(config_from_data(data))
    except CompileError as error:
        return error.rule


class Elsewhere:
    """`compile_config` in a helper process, which a new one follows after `MOST` kernels."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._done = 0

    def __call__(
        self, config: Config, here: Callable[[Config], Artifact] = compiler.compile_config
    ) -> Artifact:
        """The kernel of a config; one of a family that a test made is compiled here."""
        if config.family not in SHIPPED:
            return here(config)
        if self._done >= MOST:
            self.end()
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(1, context, _without_torch)
        self._done += 1
        found = self._pool.submit(_compiled, config.to_data()).result()
        if isinstance(found, str):
            raise CompileError(found).about(config=config)
        return found

    def end(self) -> None:
        """End the helper."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._done = None, 0
