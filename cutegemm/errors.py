# SPDX-License-Identifier: Apache-2.0
"""Every error cutegemm raises on purpose, under one root.

A message names the field, the value it was given, the rule the value breaks and, where one exists, the
nearest legal value. Errors are raised before anything is launched or written.
"""

from __future__ import annotations


class GemmError(ValueError):
    """Root of all errors raised on purpose by cutegemm."""


class SpecError(GemmError):
    """A `GemmSpec` field has no legal meaning, alone or beside the spec's other fields."""


class PlanError(GemmError):
    """A spec cannot serve a problem: it does not fit the hardware or cannot address the operands."""


class InputError(GemmError):
    """A tensor or scalar passed to `run` has the wrong rank, shape, dtype, device or memory."""


class CompileError(GemmError):
    """A kernel could not be compiled, or may not be compiled now."""


class HardwareError(GemmError):
    """The device or driver cannot run sm_90a kernels."""


class EmulatorError(GemmError):
    """The emulator met something it does not know, or a kernel that cannot go on."""


def check(condition: bool, kind: type[GemmError], message: str) -> None:
    """Raise `kind(message)` unless `condition` holds.

    Raises:
        GemmError: the given kind of it.
    """
    if not condition:
        raise kind(message)


def field_error(
    kind: type[GemmError], field: str, value: object, rule: str, nearest: object = None
) -> GemmError:
    """Build the standard message: field, value, rule, nearest legal value."""
    hint = "" if nearest is None else f"; nearest legal value: {nearest!r}"
    return kind(f"{field}={value!r}: {rule}{hint}")
