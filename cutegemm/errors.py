# SPDX-License-Identifier: Apache-2.0
"""Every error that cutegemm raises on purpose, under one root.

An error is data: the field, its value, the rule that it breaks and, if there is one, the nearest legal value. The
message is built from them. Code should read the attributes, not the text. Errors are raised before anything is launched
or written.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Iterator
from typing import Any, TypeVar

# Most characters of a value in a message; a longer value is cut in the middle.
LONGEST_VALUE = 400


class Absent(enum.Enum):
    """The type of `ABSENT`."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


# `GemmError.value` if there is no value.
ABSENT = Absent.ABSENT


Kind = TypeVar("Kind", bound="GemmError")


class GemmError(ValueError):
    """Root of all errors that cutegemm raises on purpose.

    `str(error)` is "field=value: rule; nearest legal value: nearest", without the parts that are unknown. The public
    call that fails adds its arguments with `about`.

    Attributes:
        field: such as "tile.n" or "b.shape"; None if the error concerns no field.
        value: of the field; `ABSENT` if there is none.
        rule: the rule that the value breaks.
        nearest: nearest legal value; None if there is none.
        context: arguments of the failed calls as text, outermost last; tracebacks show them (PEP 678).
    """

    field: str | None
    value: object
    rule: str
    nearest: object
    context: dict[str, str]

    def __init__(
        self, rule: str, /, field: str | None = None, value: object = ABSENT, *, nearest: object = None
    ) -> None:
        # `args` has the positional arguments, as of any exception. torch.compile shows them, and traces no super() here
        self.field, self.value, self.rule, self.nearest = field, value, rule, nearest
        self.context = {}

    def __str__(self) -> str:
        value = "" if self.value is ABSENT else f"={shown(self.value)}"
        subject = "" if self.field is None else f"{self.field}{value}: "
        hint = "" if self.nearest is None else f"; nearest legal value: {shown(self.nearest)}"
        return f"{subject}{self.rule}{hint}"

    def __repr__(self) -> str:
        # torch.compile shows an error by its repr
        return f"{type(self).__name__}({str(self)!r})"

    def concerns(self, name: str) -> bool:
        """Whether the error is about `name` or a part of it: "tile.n" and "tile[1]" concern "tile"."""
        return self.field is not None and re.split(r"[.\[(]", self.field)[0] == name

    def about(self: Kind, **circumstances: object) -> Kind:
        """Add circumstances, such as `spec=spec, a=(128, 64)`, and return the error itself.

        An existing name keeps its value, so the innermost call wins. The text of the error does not change.
        """
        for name, value in circumstances.items():
            if name not in self.context:
                self.context[name] = shown(value)
        self.__notes__ = [f"{name}: {text}" for name, text in self.context.items()]
        return self


class SpecError(GemmError):
    """A field of a `GemmSpec` is illegal, alone or together with other fields."""


class UnknownKeyword(SpecError, TypeError):
    """A class or function has no such field or argument. Also a `TypeError`, like Python's own."""


class PlanError(GemmError):
    """A spec does not support a problem: it does not fit the hardware or cannot address the operands."""


class InputError(GemmError):
    """An argument of a call has the wrong type, rank, shape, dtype, device or memory."""


class CompileError(GemmError):
    """A kernel does not compile, or compiling is not allowed now."""


class HardwareError(GemmError):
    """The device or driver cannot run sm_90a kernels."""


class MissingPackageError(GemmError, ImportError):
    """A package is not installed; the rule has the command that installs it. Also an `ImportError`."""


class CheckError(GemmError):
    """A result is outside the error bounds of its epilogue, or a kernel hangs (`CUTEGEMM_CHECK=1`)."""


class EmulatorError(GemmError):
    """The emulator does not support something in a kernel, or the kernel cannot make progress.

    Attributes:
        findings: of the race detector up to that point, `emulator.Finding`s.
    """

    findings: tuple[Any, ...] = ()


# a module that may be missing -> the argument of pip, as in pyproject.toml
_PACKAGES = {
    "torch": "'torch>=2.11'",
    "cutlass": "'nvidia-cutlass-dsl>=4.8.1,<4.9'",
    "tvm_ffi": "'apache-tvm-ffi>=0.1.15'",
    "llvmlite": "'llvmlite>=0.44'",
    "cuda": "'cuda-python>=12.9' 'cuda-core>=1.0'",
    "handwritten": "cutegemm",
}


@contextlib.contextmanager
def needing() -> Iterator[None]:
    """Turn a failed import of an optional package into a `MissingPackageError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _PACKAGES:
            raise
        rule = f"is not installed, and this needs it: pip install {_PACKAGES[module]}"
        raise MissingPackageError(rule, field=module) from error


def check(
    condition: bool,
    kind: type[GemmError],
    rule: str,
    *,
    field: str | None = None,
    value: object = ABSENT,
    nearest: object = None,
) -> None:
    """Raise an error of `kind` unless `condition` holds."""
    if not condition:
        raise kind(rule, field=field, value=value, nearest=nearest)


def field_error(kind: type[Kind], field: str, value: object, rule: str, nearest: object = None) -> Kind:
    """An error about one field."""
    return kind(rule, field, value, nearest=nearest)


def shown(value: object) -> str:
    """A value on one line of a message: its repr, shortened; for a tensor, type, shape and dtype.

    The repr of a tensor has many lines, and that of a GPU tensor synchronizes.
    """
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        here = getattr(getattr(value, "device", None), "type", "cpu") == "cpu"
        if isinstance(shape, tuple) and dtype is not None and (shape or not here):
            return f"<{type(value).__name__} {tuple(shape)} {dtype}>"
    except Exception:
        # a nested tensor has no single shape, and any attribute access may raise
        return f"<{type(value).__name__}>"
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    if "\n" in text:
        # a list of tensors
        text = " ".join(text.split())
    if len(text) <= LONGEST_VALUE:
        return text
    half = LONGEST_VALUE // 2 - 3
    return f"{text[:half]} ... {text[-half:]}"
