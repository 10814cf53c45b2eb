# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the midst of the DSL's compiler, outside the command line."""

from __future__ import annotations

import signal

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.compiling import compiler
from cutegemm.planning.planner import plan


def test_an_interrupt_is_heard_when_the_compiler_is_done(monkeypatch):
    """It is a KeyboardInterrupt once the DSL has returned; after that the signal is heard as usual."""
    import cutlass.cute as cute

    done = []

    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        done.append(True)
        raise RuntimeError("refused")

    monkeypatch.setattr(cute, "compile", interrupted)
    config = plan(GemmSpec(tile=Tile(128, 64, 64)), problem(256, 256, 256)).config
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiler.compile_config(config)
        assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
