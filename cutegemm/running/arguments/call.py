# SPDX-License-Identifier: Apache-2.0
"""What a call passes, what tells one kind of call from another, and a bounded memory of kinds. No torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from cutegemm.config import GemmConfig

# kinds of calls that a `Gemm` remembers at least; a kind holds a plan and converted arguments, some 10 KiB
REMEMBERED = 512

# the address of a tensor that is not given; of one without memory it is 0
NOWHERE = -1

V = TypeVar("V")


class Planned(Protocol):
    """What a run needs to know of how it is served: a `KernelPlan`, or a recipe of an artefact."""

    @property
    def steps(self) -> Sequence[Any]:
        """The launches; none where D is empty."""

    @property
    def config(self) -> GemmConfig | None:
        """The GEMM kernel's config, where it is known."""

    @property
    def workspace_bytes(self) -> int:
        """Device memory beside the operands."""

    @property
    def counter_bytes(self) -> int:
        """Counters that a run finds zero and leaves zero."""

    @property
    def parts(self) -> tuple[int, int, int]:
        """Partial results per result of a reduction over D's rows, columns and all."""

    @property
    def partial_width(self) -> tuple[int, int]:
        """D's rows and columns that one partial result covers."""


@dataclass(frozen=True)
class Request:
    """What one call passes, by name: A, B, the epilogue's inputs that are tensors, and the outputs given.

    Attributes:
        a: (M, K) or (L, M, K); b: (K, N) or (L, K, N); 2-D operands serve every batch.
        inputs: matrices (M, N) or (L, M, N), rows (N,) or (L, N), columns (M,) or (L, M), in the graph's order;
            after them its scalars that are tensors, 0-d. Of a gated graph N is half of B's columns.
        outs: matrices (M, N) or (L, M, N), results of reductions.
    """

    a: Any
    b: Any
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def read(self) -> dict[str, Any]:
        """Everything that is read."""
        return {"a": self.a, "b": self.b, **self.inputs}

    @property
    def tensors(self) -> dict[str, Any]:
        """Everything."""
        return self.read | dict(self.outs)


def identity(t: Any) -> tuple[Any, ...]:
    """What the checks of a call depend on of one tensor, beside its address."""
    return t.shape, t.stride(), t.dtype, t.get_device(), t.is_neg(), t.requires_grad and recording()


def substance(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What tells tensors apart of which one lies at address 0: empty ones of CPU and GPU, meta, fake."""
    return tuple([None if t is None else (type(t), t.device) for t in given])


def recording() -> bool:
    """Whether autograd records operations now."""
    import torch

    return torch.is_grad_enabled()


class Memo(Generic[V]):
    """The most recently used of many values, at most twice `half`, at the cost of a dictionary on a hit.

    Two generations: when the recent one is full, it becomes the old one, and what was old and not asked for
    since is forgotten.
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
        """Remember a value."""
        with self._lock:
            if len(self.recent) >= self.half:
                self._old, self.recent = self.recent, {}
            self.recent[key] = value

    def __len__(self) -> int:
        return len(self.recent.keys() | self._old.keys())

    def values(self) -> Iterator[V]:
        """All values remembered."""
        return iter((self._old | self.recent).values())


__all__ = ["NOWHERE", "Memo", "Request", "identity", "recording", "substance"]
