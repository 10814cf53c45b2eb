# SPDX-License-Identifier: Apache-2.0
"""A database entry, and its key.

A key has four fields: the GPU's model and SMs, the spec, the problem's kind (types, majors, what TMA can address, what
is broadcast) and its extents.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.arch.device import Device
from cutegemm.checks import plain
from cutegemm.config import Config
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import GemmError, SpecError, field_error
from cutegemm.problems import Operand, Problem
from cutegemm.request.operand_rules import major
from cutegemm.spec import AUTO, GemmSpec, Tile

Extents = tuple[int, int, int, int]
# hexadecimal digits of a digest: 64 bits distinguish a kernel from its own later versions
DIGEST = 16
# Fields of a spec that change the result or promise something about operands. The database never chooses them.
TYPES = {*(f"{x}_dtype" for x in ("a", "b", "c", "d", "acc")), *(f"{x}_major" for x in "abcd")}
USERS_CHOICE = TYPES | {"constant", "batch_invariant", "promote", "math", "epilogue"}


class Key(NamedTuple):
    """The key of an entry: texts of GPU, spec and kind, and (M, N, K, batch)."""

    gpu: str
    spec: str
    kind: str
    extents: Extents


def key_of(spec: GemmSpec, problem: Problem, device: Device) -> Key:
    """The key of a problem under a spec on a GPU."""
    extents = (problem.m, problem.n, problem.k, problem.batch)
    return Key(gpu_text(device), spec_text(spec), kind_text(problem), extents)


def gpu_text(device: Device) -> str:
    """A GPU's model and SMs; some boards of one model have fewer SMs."""
    return f"{device.name}, {device.sms} SMs"


def spec_text(spec: GemmSpec) -> str:
    """A spec's given fields as JSON, with a digest for its epilogue; types and majors are in the problem's kind."""
    given = {name: _plain(value) for name, value in spec.given().items() if name not in TYPES}
    return json.dumps(given, sort_keys=True)


def kind_text(problem: Problem) -> str:
    """The types and memory layouts of a problem's tensors, without its extents."""
    tensors = [("a", problem.a), ("b", problem.b), *problem.inputs, *problem.outputs]
    words = [f"{name} {_layout(x, problem.batch)}" for name, x in tensors]
    words += [f"{name} on the device" for name in problem.device_scalars]
    return "; ".join(words)


def _layout(x: Operand, batch: int) -> str:
    unaligned = "" if x.tma_reason() is None else " unaligned"
    shared = " shared" if batch > 1 and x.batch == 1 else ""
    return f"{x.dtype.value} {major(x, 'column-major', 'row-major')}{unaligned}{shared}"


def _plain(value: Any) -> Any:
    if isinstance(value, Graph):
        return digest(json.dumps(value.to_data(), sort_keys=True))
    return list(value) if isinstance(value, (Tile, tuple)) else str(getattr(value, "value", value))


def digest(text: str) -> str:
    """A short SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def config_digest(config: Config) -> str:
    """The digest of a kernel's config.

    Fields at their defaults are left out, so a field added later, whose default is the old behavior, changes no digest.
    """
    return digest(json.dumps(_without_defaults(config), sort_keys=True))


def _without_defaults(value: Any) -> Any:
    if isinstance(value, Graph):
        return value.to_data()
    if isinstance(value, tuple):
        return [_without_defaults(x) for x in value]
    if not dataclasses.is_dataclass(value):
        return plain(value)
    values = {f: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {f.name: _without_defaults(x) for f, x in values.items() if x != f.default}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The fastest measured kernel of one problem."""

    fields: Mapping[str, Any]  # of a `GemmSpec`, to be added to the spec's own; plain data
    config: str  # digest of the GEMM kernel's config
    ptx: str  # digest of its PTX; a kernel that changed later has others
    us: float  # microseconds per call
    spread: float  # of the samples, relative
    model_us: float  # of the cost model's choice in the same rounds
    tried: int  # candidates that were compared
    complete: bool  # whether these were all candidates
    date: str  # of the measurement, UTC, ISO 8601
    made_with: str  # versions of the DSL and the driver

    def expired(self, config: Config, ptx: str | None = None) -> bool:
        """Whether a kernel differs from the one that was measured; without its PTX only the config is compared."""
        return config_digest(config) != self.config or (ptx is not None and digest(ptx) != self.ptx)

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `from_data` reads it back."""
        return vars(self) | {"fields": dict(self.fields)}

    @staticmethod
    def from_data(data: Any) -> Entry:
        """Read an entry.

        Raises:
            ValueError: the data is not an entry.
        """
        try:
            entry = Entry(**data)
            for name, kind in typing.get_type_hints(Entry).items():
                value = getattr(entry, name)
                legal = isinstance(value, typing.get_origin(kind) or kind) or (
                    kind is float and type(value) is int
                )
                if not legal or (kind is float and not math.isfinite(value)):
                    raise ValueError(f"{name} is {value!r}")
            datetime.datetime.fromisoformat(entry.date)
            _with(GemmSpec(), entry.fields)
        except (TypeError, OverflowError, GemmError) as error:
            raise ValueError(f"not an entry: {error}") from error
        if entry.us <= 0:
            raise ValueError(f"us is {entry.us}")
        return entry


def refined(spec: GemmSpec, fields: Mapping[str, Any]) -> GemmSpec:
    """A spec with its unspecified fields taken from `fields`; lists stand for tuples, as in JSON.

    Raises:
        GemmError: a value is illegal, or only the user may choose it.
        TypeError: there is no such field.
    """
    new = _with(spec, fields)
    if new.split_reduction == "atomic" != spec.split_reduction:
        rule = "changes the last bits from run to run, so only the user may choose it"
        raise field_error(SpecError, "split_reduction", "atomic", rule, AUTO)
    return new


def _with(spec: GemmSpec, fields: Mapping[str, Any]) -> GemmSpec:
    for name in USERS_CHOICE & fields.keys():
        raise field_error(SpecError, name, fields[name], "only the user may choose it", AUTO)
    given = spec.given()
    new: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()
        if name not in given
    }
    return dataclasses.replace(spec, **new)


def key_from(words: Sequence[Any], extents: Sequence[Any]) -> Key:
    """A key from a file: texts of GPU, spec and kind, and four extents.

    Raises:
        ValueError: it is not a key.
    """
    gpu, spec, kind = words
    m, n, k, batch = extents
    legal = all(isinstance(x, str) for x in words) and all(type(x) is int for x in extents)
    if not legal:
        raise ValueError("not a key: a value has another type")
    if not all(0 <= x <= LIMITS.max_extent for x in extents):
        raise ValueError(f"not a key: an extent is outside 0 to {LIMITS.max_extent}")
    for word in words:
        # SQLite stores text as UTF-8, and raises UnicodeEncodeError, a ValueError, for half a surrogate pair
        word.encode()
    return Key(gpu, spec, kind, (m, n, k, batch))
