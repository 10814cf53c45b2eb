# SPDX-License-Identifier: Apache-2.0
"""What to write instead of a name that the epilogue language does not have."""

from __future__ import annotations

from collections.abc import Iterable

from cutegemm import checks
from cutegemm.errors import GemmError, SpecError, field_error

# The functions of the language; `functions.py` enters them, which imports the values that ask here.
FUNCTIONS: list[str] = []
# names of NumPy, torch and other frameworks, or parts of them, and what they are called here
ALIASES = {
    "absolute": "abs", "clip": "clamp", "fabs": "abs", "gelu_erf": "gelu", "gelu_new": "gelu_tanh",
    "hard_swish": "hardswish", "logistic": "sigmoid", "maximum": "max", "minimum": "min", "fmax": "max",
    "fmin": "min", "ln": "log", "rand": "random", "rint": "round", "select": "where", "swish": "silu",
}  # fmt: skip
# functions of other libraries that are none of ours, however they are spelt
OTHERS = "acos asin atan ceil cos cosh exp2 expm1 log10 log1p log2 mod sin sinh tan".split()


class UnknownOperation(SpecError, AttributeError):
    """The epilogue language has no such name."""


def nearest(name: str, legal: Iterable[str]) -> str | None:
    """The legal name that is meant: an alias, the one that the name begins with, or one spelt alike; else None."""
    names = list(legal)
    if ALIASES.get(name) in names:
        return ALIASES[name]
    begun = [x for x in names if name.startswith(f"{x}_")]
    if name in OTHERS:
        return None
    return max(begun, key=len) if begun else checks.near(name, names)


def instead(name: str) -> str | None:
    """The function of the language for another library's, as `epi.name(value)`; None if there is none."""
    found = nearest(name, FUNCTIONS)
    return None if found is None else f"epi.{found}(value)"


def unknown(name: str, legal: Iterable[str]) -> UnknownOperation:
    """The error for a name that the language does not have."""
    return field_error(UnknownOperation, "epilogue", name, "unknown operation", nearest(name, legal))


def foreign(name: str, library: str) -> GemmError:
    """The error for another library's function on a value."""
    rule = f"{library}'s functions do not work while an epilogue is traced; those of cutegemm.epilogue do"
    return field_error(SpecError, "epilogue", name, rule, instead(name.rpartition(".")[2]))
