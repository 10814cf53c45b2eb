# SPDX-License-Identifier: Apache-2.0
"""Checks of single values for specs, problems and calls. They return the accepted value as plain Python."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import inspect
import itertools
import operator
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from cutegemm.errors import GemmError, InputError, UnknownKeyword, field_error

N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R")


def plain(value: Any) -> Any:
    """Convert dataclasses, enumerations, bytes (to hex), mappings and sequences to a JSON-serialisable form."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): plain(x) for name, x in value.items()}
    return [plain(x) for x in value] if isinstance(value, (list, tuple)) else value


def unplain(kind: Any, data: Any) -> Any:
    """Rebuild a value of type `kind` from the form that `plain` returns, using the annotations of its fields.

    Raises:
        KeyError, TypeError, ValueError: the data is not of that type.
    """
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast(Any, kind))
        return kind(**{name: unplain(hints[name], x) for name, x in data.items()})  # type: ignore[operator]
    if kind is bytes:
        return bytes.fromhex(data)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    if typing.get_origin(kind) is not tuple:
        return data
    *kinds, last = typing.get_args(kind)
    if last is Ellipsis:
        return tuple(map(unplain, itertools.repeat(kinds[0]), data))
    return tuple(unplain(x, y) for x, y in zip((*kinds, last), data, strict=True))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def integer(kind: type[GemmError], field: str, value: object, low: int, high: int) -> int:
    """Return an integer within bounds as an `int`, or raise `kind`. Accepts anything with `__index__`, except bools."""
    number = _index(value)
    if number is None:
        raise field_error(kind, field, value, f"must be an integer from {low} to {high}")
    if not low <= number <= high:
        nearest = min(max(number, low), high)
        raise field_error(kind, field, number, f"must be from {low} to {high}", nearest)
    return number


def integers(value: object) -> tuple[int, ...] | None:
    """Convert a tuple or list of integers to a tuple of `int`; None for anything else."""
    if not isinstance(value, (tuple, list)):
        return None
    numbers = [_index(x) for x in value]
    whole = tuple(x for x in numbers if x is not None)
    return whole if len(whole) == len(numbers) else None


def among(value: object, legal: Sequence[object]) -> bool:
    """Whether a value is one of a few names, numbers, bools or None; 1 is not True.

    Other types are not compared, because arrays compare element by element.
    """
    if not isinstance(value, (str, int, type(None))):
        return False
    return any(value == x and isinstance(value, bool) == isinstance(x, bool) for x in legal)


def truth(kind: type[GemmError], field: str, value: object) -> bool:
    """Return a bool unchanged, or raise `kind`."""
    if not isinstance(value, bool):
        raise field_error(kind, field, value, "must be True or False")
    return value


def choice(kind: type[GemmError], field: str, value: object, legal: Sequence[str]) -> str:
    """Return a string that is one of the `legal` names, or raise `kind`."""
    if not isinstance(value, str) or value not in legal:
        meant = near(value, legal) if isinstance(value, str) else None
        raise field_error(kind, field, value, f"must be one of {', '.join(legal)}", meant)
    return str(value)


# accepted values of a boolean environment variable; an empty one counts as unset
_SWITCH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def names(kind: type[GemmError], field: str, value: object) -> tuple[str, ...]:
    """A tuple of names from a tuple or list. A single string is refused, because it would be read as letters."""
    rule = "must be a tuple of names"
    if isinstance(value, str):
        raise field_error(kind, field, value, rule, (value,))
    if not isinstance(value, (tuple, list)) or not all(isinstance(x, str) for x in value):
        raise field_error(kind, field, value, rule)
    return tuple(value)


def switch(name: str, default: bool = False) -> bool:
    """The value of a boolean environment variable.

    Raises:
        InputError: its value is not one of the accepted ones.
    """
    given = os.environ.get(name, "").strip()
    if not given:
        return default
    if given.lower() not in _SWITCH:
        rule = f"must be one of {', '.join(_SWITCH)}, or empty"
        raise field_error(InputError, name, given, rule, "0" if default else "1")
    return _SWITCH[given.lower()]


class Named:
    """A base of dataclasses that refuses unknown fields by name.

    `__new__` receives them before the generated `__init__`, which type checkers use.
    """

    def __new__(cls: type[N], *_: Any, **fields: Any) -> N:
        known = cls.__dataclass_fields__  # type: ignore[attr-defined]
        if not fields.keys() <= known.keys():
            raise _unknown(cls.__name__, fields, tuple(known), "fields", None)
        return object.__new__(cls)


def keywords(of: type | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse unknown keywords of a function by name, as `GemmError`s.

    Args:
        of: a dataclass whose fields users may pass to the function by mistake.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = tuple(x for x in inspect.signature(function).parameters if x != "self")
        legal = frozenset(known)
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: P.args, **named: P.kwargs) -> R:
            if not named.keys() <= legal:
                raise _unknown(name, named, known, "arguments", of)
            return function(*args, **named)

        return checked

    return decorate


def _unknown(
    name: str, given: Mapping[str, Any], known: Sequence[str], what: str, of: type | None
) -> UnknownKeyword:
    """The error about the first unknown keyword of a class or function."""
    field = next(x for x in given if x not in known)
    rule = f"{name} has no such {what.removesuffix('s')}; its {what} are {', '.join(known)}"
    if of is not None and field in of.__dataclass_fields__:  # type: ignore[attr-defined]
        rule += f"; it is a field of {of.__name__}"
        return field_error(UnknownKeyword, field, given[field], rule, f"{of.__name__}({field}=...)")
    return field_error(UnknownKeyword, field, given[field], rule, near(field, known))


def near(name: str, legal: Iterable[str]) -> str | None:
    """The legal name closest to a misspelt one; None if none is similar.

    The similarity must be at least 0.75; a lower limit would suggest "min" for "sin".
    """
    return _near(name, tuple(legal))


def _near(name: str, legal: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(name, legal, 1, 0.75)), None)


# torch.compile calls it instead of tracing difflib
_near._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:
        # an object's own __index__ may raise anything
        return None
