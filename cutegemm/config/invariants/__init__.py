# SPDX-License-Identifier: Apache-2.0
"""What a tensor-core kernel requires of its config; `config.simt_invariants` has the same for the CUDA cores.

A `KernelConfig` that breaks an invariant cannot be made, whether the planner, the tuner, a database or a cache asks for
it. Each invariant is a function of fields (`rule.Rule`) that serves one config and a `KernelDraft` of many candidates:

    check(draft)            raises the refusal of the first invariant that does not hold
    satisfied(drafts)       whether all of them hold, for each candidate
    TILE, KIND              those of a draft without buffers; of those, the ones that no tile can fix
    BUFFERS, MEMORY         those of the epilogue's buffers, and of all shared memory

They are in `tiles`, `roles`, `splits` and `epilogue`.
"""

from __future__ import annotations

from collections.abc import Iterable

from cutegemm.config.draft import KernelDraft
from cutegemm.config.invariants import epilogue, roles, splits, tiles
from cutegemm.config.invariants.epilogue import BUFFERS, MEMORY
from cutegemm.config.invariants.rule import Rule, all_hold, check_all
from cutegemm.config.numbers import Number

# in order: a later one may divide by what an earlier one requires to be positive
TILE: tuple[Rule, ...] = (
    *epilogue.FIRST,
    *tiles.RULES,
    *roles.RULES,
    tiles.ACCUMULATORS,
    *splits.KINDS,
    *tiles.LATER,
    *roles.LATER,
    *splits.LATER,
    *epilogue.LATER,
)
KIND = tuple(x for x in TILE if not x.needs_tile)
ALL = (*TILE, *BUFFERS, MEMORY, roles.STAGES)


def check(draft: KernelDraft, rules: Iterable[Rule] = ALL) -> None:
    """Refuse a config that breaks an invariant.

    Raises:
        PlanError: it does; names the field, value, rule and nearest legal value.
    """
    check_all(rules, draft)


def satisfied(drafts: KernelDraft, rules: Iterable[Rule] = ALL) -> Number:
    """Whether invariants hold: one truth value, or for a draft of many candidates an array of them."""
    return all_hold(rules, drafts)


__all__ = ["ALL", "BUFFERS", "KIND", "MEMORY", "TILE", "check", "satisfied"]
