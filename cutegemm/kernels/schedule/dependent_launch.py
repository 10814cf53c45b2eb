# SPDX-License-Identifier: Apache-2.0
"""Programmatic dependent launch: when the next launch may begin, and where this one waits for those before it.

Every thread that reads or writes what an earlier launch may touch executes the wait first, or is behind a barrier
that such a thread completes: producer and consumers each wait by themselves. The wait ends when every earlier launch
has ended and its writes are visible, whenever those triggered. Before it, only barriers and tensor maps are set up,
and parts of operands are loaded that the caller has named constant.

Source: PTX ISA 9.0, griddepcontrol; CUDA programming guide, programmatic dependent launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute

from cutegemm.config import GemvConfig, KernelConfig


@dataclass(frozen=True)
class Dependence:
    """A CTA's side of it; nothing where the launch does not take part."""

    config: KernelConfig | GemvConfig

    def start(self) -> None:
        """After the prologue."""
        if self.config.trigger == "start":
            cute.arch.griddepcontrol_launch_dependents()

    def wait(self) -> None:
        """Before the first access to what an earlier launch may write."""
        if self.config.trigger != "never":
            cute.arch.griddepcontrol_wait()

    @cute.jit
    def done(self, what: cutlass.Constexpr) -> None:
        """After what the CTA does last: its "loads", the "mainloop" of its last work tile, or both at one point."""
        if cutlass.const_expr(self.config.trigger in what):
            cute.arch.griddepcontrol_launch_dependents()
