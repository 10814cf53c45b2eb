# SPDX-License-Identifier: Apache-2.0
"""A call's tensors, the key of its kind, and a bounded cache of kinds. Imports no torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from cutegemm.config import GemmConfig

# kinds of calls that a `Gemm` caches at least; a kind holds a plan and converted arguments, about 10 KiB
REMEMBERED = 512

# address of a tensor that was not given; a tensor without memory has address 0
NOWHERE = -1

V = TypeVar("V")


class Planned(Protocol):
    """The part of a plan that a run needs: a `KernelPlan`, or a recipe of an artefact."""

    @property
    def steps(self) -> Sequence[Any]:
        """The launches; none if D is empty."""

    @property
    def config(self) -> GemmConfig | None:
        """The GEMM kernel's config, if known."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory besides the operands."""

    @property
    def counter_bytes(self) -> int:
        """Bytes of counters, which are zero on entry and reset on exit."""

    @property
    def parts(self) -> tuple[int, int, int]:
        """Partial results per result of a reduction over D's rows, columns and all."""

    @property
    def partial_width(self) -> tuple[int, int]:
        """D's rows and columns that one partial result covers."""


@dataclass(frozen=True)
class Request:
    """The tensors of one call: A, B, the epilogue's tensor inputs by name, and the given outputs by name.

    Attributes:
        a: (M, K) or (L, M, K); b: (K, N) or (L, K, N); all batches share 2-D operands.
        inputs: matrices (M, N) or (L, M, N), rows (N,) or (L, N), columns (M,) or (L, M), in the graph's order;
            then its 0-d tensors for scalars. For a gated graph N is half of B's columns.
        outs: matrices (M, N) or (L, M, N), results of reductions.
    """

    a: Any
    b: Any
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def read(self) -> dict[str, Any]:
        """All input tensors."""
        return {"a": self.a, "b": self.b, **self.inputs}

    @property
    def tensors(self) -> dict[str, Any]:
        """All tensors."""
        return self.read | dict(self.outs)


def identity(t: Any) -> tuple[Any, ...]:
    """The properties of a tensor, besides its address, that the checks of a call read."""
    return t.shape, t.stride(), t.dtype, t.get_device(), t.is_neg(), t.requires_grad and recording()


def substance(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Distinguishes tensors when one has a null data pointer: empty CPU and GPU tensors, meta, fake."""
    return tuple([None if t is None else (type(t), t.device) for t in given])


def recording() -> bool:
    """Whether autograd currently records operations."""
    import torch

    return torch.is_grad_enabled()


class Memo(Generic[V]):
    """A cache of at most twice `half` recently used values; a hit costs one dictionary lookup.

    It has two generations: when the recent one is full, it becomes the old one, and old values that were not used
    since are dropped.
    """

    def __init__(self, half: int = REMEMBERED) -> None:
        self.half = half
        self.recent: dict[Any, V] = {}
        self._old: dict[Any, V] = {}
        self._lock = threading.Lock()

    def get(self, key: Any) -> V | None:
        """The value of a key, or None."""
        found = self.recent.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: Any, value: V) -> None:
        """Add a value."""
        with self._lock:
            if len(self.recent) >= self.half:
                self._old, self.recent = self.recent, {}
            self.recent[key] = value

    def __len__(self) -> int:
        return len(self.recent.keys() | self._old.keys())

    def values(self) -> Iterator[V]:
        """All cached values."""
        return iter((self._old | self.recent).values())


__all__ = ["NOWHERE", "Memo", "Request", "identity", "recording", "substance"]
