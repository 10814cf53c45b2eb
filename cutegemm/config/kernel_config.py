# SPDX-License-Identifier: Apache-2.0
"""`KernelConfig`: a tensor-core kernel's config, which is checked when it is made."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cutegemm.config.draft import KernelDraft
from cutegemm.config.invariants import check

# plans of many problems share few configs
_check = functools.lru_cache(1024)(check)


@dataclass(frozen=True, kw_only=True)
class KernelConfig(KernelDraft):
    """A tensor-core kernel that can be compiled: its fields are `KernelDraft`'s.

    Raises:
        PlanError: an invariant does not hold (`config.invariants`).
    """

    def __post_init__(self) -> None:
        _check(self)

    @property
    def draft(self) -> KernelDraft:
        """The same fields as a draft, which can be changed."""
        draft = object.__new__(KernelDraft)
        draft.__dict__.update(self.__dict__)
        return draft

    @property
    def group_rows(self) -> int:
        """The extent of a CTA tile along the axis of the groups; 0 without groups."""
        return self.tile["mnk".index(self.grouped)] if self.grouped else 0

    @property
    def repeats(self) -> bool:
        """Whether an empty group's elements are all alike and TMA stores them: one tile's staging buffers serve all."""
        alike = not self.epilogue.tensors and all(node.op != "random" for node in self.epilogue.nodes)
        alike &= not self.epilogue.reductions
        # every buffer is written by any tile
        written = bool(self.subtiles >= self.epilogue_stages)
        return self.grouped == "k" and alike and self.stored_by_tma and written

    @property
    def stored_by_tma(self) -> bool:
        """Whether TMA stores all outputs."""
        return all(x.store == "tma" for x in self.outputs)

    @property
    def stored_at_once(self) -> int:
        """Subtiles that a warpgroup writes to staging buffers before TMA stores them.

        Each batch takes two barriers of the warpgroup. It is a whole tile if every subtile has a buffer, else half of
        the buffers, so that TMA reads one half while threads write the other. It is one subtile where each needs a
        barrier of its own: TMA loads inputs, blocks of outputs have scales, or threads store.
        """
        if not self.stored_by_tma or any(x.load == "tma" for x in self.inputs) or self.epilogue.blocks:
            return 1
        buffers = int(self.epilogue_stages)
        return int(self.subtiles) if self.subtiles <= buffers else max(1, buffers // 2)

    @classmethod
    def of(cls, draft: KernelDraft) -> KernelConfig:
        """The config of a finished draft.

        Raises:
            PlanError: an invariant does not hold.
        """
        made = object.__new__(cls)
        made.__dict__.update(draft.__dict__)
        made.__post_init__()
        return made
