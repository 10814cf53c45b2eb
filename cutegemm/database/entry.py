# SPDX-License-Identifier: Apache-2.0
"""What the database knows of one problem, and what it is found by.

A key is four parts: the GPU's model and SMs, the spec, the problem's kind (types, majors, what TMA can address, what is
broadcast) and its extents. Of a kind the extents alone differ, so that entries of one kind are neighbours.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cutegemm.arch.device import Device
from cutegemm.config import Config
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import GemmError, SpecError, field_error
from cutegemm.planning.operand_rules import major
from cutegemm.problems import Operand, Problem
from cutegemm.spec import AUTO, GemmSpec, Tile

Extents = tuple[int, int, int, int]
# digits of a digest: 64 bits tell a kernel from its own later versions
DIGEST = 16
# Fields of configs that entries' digests have always had. One that configs gained later counts where it is not at its
# default, which is what every kernel was before.
FIRST = frozenset(
    """adders ahead cluster cluster_parts consumers ctas_per_sm device_scalars dynamic early epi_n epilogue
    epilogue_stages evict_first evict_last family input_stages inputs lanes_m limits operands outputs persistent
    pingpong raster residents serpentine slices split split_reduction splits staged stages streamed thread_tile tile
    trigger unroll vector""".split()
)
# Fields that operands gained later, with the values of every earlier kernel.
LATER: dict[str, object] = {"indexed": False}
# Fields that configs of tensor-core kernels no longer have, with their values in digests.
GONE: dict[str, object] = {"evict_last": []}
# Names that fields had when entries were first digested.
RENAMED = {"cluster_splits": "cluster_parts"}
# A shape takes a neighbour's choice where every extent is within this factor of the neighbour's.
NEAR = math.sqrt(2)
# Fields of a spec that say what is asked, or promise something: nobody's choice.
TYPES = {*(f"{x}_dtype" for x in ("a", "b", "c", "d", "acc")), *(f"{x}_major" for x in "abcd")}
ASKED = TYPES | {"constant", "batch_invariant", "promote", "math", "epilogue"}


class Key(NamedTuple):
    """Where an entry lies: texts of GPU, spec and kind, and (M, N, K, batch)."""

    gpu: str
    spec: str
    kind: str
    extents: Extents


def key_of(spec: GemmSpec, problem: Problem, device: Device) -> Key:
    """The key of a problem under a spec on a GPU."""
    extents = (problem.m, problem.n, problem.k, problem.batch)
    return Key(gpu_text(device), spec_text(spec), kind_text(problem), extents)


def gpu_text(device: Device) -> str:
    """A GPU's model and SMs: parts of one model may have some of them switched off."""
    return f"{device.name}, {device.sms} SMs"


def spec_text(spec: GemmSpec) -> str:
    """A spec's given fields as JSON, but types and majors, which its problem has; of its epilogue a digest."""
    given = {name: value for name, value in spec.given().items() if name not in TYPES}
    return json.dumps({name: _plain(value) for name, value in given.items()}, sort_keys=True)


def kind_text(problem: Problem) -> str:
    """How a problem's tensors lie, whatever its extents."""
    tensors = [("a", problem.a), ("b", problem.b), *problem.inputs, *problem.outputs]
    words = [f"{name} {_lies(x, problem.batch)}" for name, x in tensors]
    words += [f"{name} on the device" for name in problem.device_scalars]
    return "; ".join(words)


def _lies(x: Operand, batch: int) -> str:
    how = "" if x.tma_reason() is None else " unaligned"
    shared = " shared" if batch > 1 and x.batch == 1 else ""
    return f"{x.dtype.value} {major(x, 'column-major', 'row-major')}{how}{shared}"


def _plain(value: Any) -> Any:
    if isinstance(value, Graph):
        return digest(json.dumps(value.to_data(), sort_keys=True))
    return list(value) if isinstance(value, (Tile, tuple)) else str(getattr(value, "value", value))


def digest(text: str) -> str:
    """What tells one text from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def config_digest(config: Config) -> str:
    """The digest of a kernel's config, without later fields (`FIRST`, `LATER`) at their defaults."""
    usual = {f.name: f.default for f in dataclasses.fields(config)}
    fields = config.to_data()
    if "operands" in fields:
        fields["operands"] = [dict(x.items() - LATER.items()) for x in fields["operands"]]
    kept = {RENAMED.get(name, name): (x, usual.get(name, dataclasses.MISSING)) for name, x in fields.items()}
    data = {name: x for name, (x, default) in kept.items() if name in FIRST or default != x}
    if "evict_first" in data:
        data |= GONE
    return digest(json.dumps(data, sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was measured best for one problem.

    Attributes:
        fields: of a `GemmSpec`, beside the spec's own, that ask for the choice; plain data.
        config, ptx: digests of the GEMM kernel's config and PTX. What differs has changed since.
        us: microseconds a call; spread: of its samples, relative.
        model_us: of the model's choice in the same rounds.
        tried: candidates that were compared; complete: whether that was all of them.
        date: when, UTC, ISO 8601.
        made_with: versions of the DSL and the driver.
    """

    fields: Mapping[str, Any]
    config: str
    ptx: str
    us: float
    spread: float
    model_us: float
    tried: int
    complete: bool
    date: str
    made_with: str

    def expired(self, config: Config, ptx: str | None = None) -> bool:
        """Whether the kernel that the choice gives now is another than the one that was measured.

        Args:
            config: of the kernel.
            ptx: its text; None where it is not compiled, so that only the config is compared.
        """
        return config_digest(config) != self.config or (ptx is not None and digest(ptx) != self.ptx)

    def refined(self, spec: GemmSpec) -> GemmSpec:
        """The spec with the entry's fields where it leaves them open.

        Raises:
            GemmError: the fields are none of a spec.
        """
        return refined(spec, self.fields)

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `from_data` reads it back."""
        return dataclasses.asdict(self) | {"fields": dict(self.fields)}

    @staticmethod
    def from_data(data: Any) -> Entry:
        """Read an entry.

        Raises:
            ValueError: it is none.
        """
        try:
            found = Entry(**data)
            kinds = {"config": str, "ptx": str, "tried": int, "complete": bool, "date": str, "made_with": str}
            numbers = {name: getattr(found, name) for name in ("us", "spread", "model_us")}
            kinds |= dict.fromkeys(numbers, (int, float))  # type: ignore[arg-type]
            legal = all(isinstance(getattr(found, name), kind) for name, kind in kinds.items())
            legal = legal and not any(isinstance(x, bool) or not math.isfinite(x) for x in numbers.values())
            if not (legal and isinstance(found.fields, Mapping) and found.us > 0):
                raise ValueError("a value is of another type")
            datetime.datetime.fromisoformat(found.date)
            _with(GemmSpec(), found.fields)
        except (TypeError, OverflowError, GemmError) as error:
            raise ValueError(f"no entry: {error}") from error
        return found


def refined(spec: GemmSpec, fields: Mapping[str, Any]) -> GemmSpec:
    """A spec with more fields, where it leaves them open; lists stand for tuples, as in JSON.

    Raises:
        GemmError: a value has no legal meaning, or what it means may only be asked for.
        TypeError: there is no such field.
    """
    new = _with(spec, fields)
    if new.split_reduction == "atomic" != spec.split_reduction:
        raise field_error(SpecError, "split_reduction", "atomic", "last bits differ: is only asked for", AUTO)
    return new


def _with(spec: GemmSpec, fields: Mapping[str, Any]) -> GemmSpec:
    for name in ASKED & fields.keys():
        raise field_error(SpecError, name, fields[name], "says what is asked and is nobody's choice", AUTO)
    given = spec.given()
    new: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()
        if name not in given
    }
    return dataclasses.replace(spec, **new)


def key_from(words: Sequence[Any], extents: Sequence[Any]) -> Key:
    """A key that was read: texts of GPU, spec and kind, and four extents.

    Raises:
        ValueError: it is none.
    """
    gpu, spec, kind = words
    m, n, k, batch = extents
    legal = all(isinstance(x, str) for x in words) and all(type(x) is int and x >= 0 for x in extents)
    if not legal:
        raise ValueError("no key: a value is of another type")
    return Key(gpu, spec, kind, (m, n, k, batch))


def nearest(extents: Extents, among: Iterable[Extents]) -> Extents | None:
    """The neighbour whose choice a shape takes, or None where none is near.

    The distance of two shapes is the largest factor between extents of theirs, in either direction; it must be at
    most `NEAR`. Of two as near, the one with the smaller product of all factors, then the larger shape.
    """

    def factors(other: Extents) -> list[float]:
        return [max(x, y) / max(1, min(x, y)) if x != y else 1.0 for x, y in zip(extents, other, strict=True)]

    near = [x for x in among if max(factors(x)) <= NEAR]
    return min(
        near,
        key=lambda x: (max(factors(x)), math.prod(factors(x)), [-extent for extent in x]),
        default=None,
    )
