# SPDX-License-Identifier: Apache-2.0
"""Invariants of split-K: every reduction has more than one sum to add, and every sum is stored.

A spec's given splits are refused by the same rules (`STREAMED`, `whole`, `nearest_whole`).
"""

from __future__ import annotations

from cutegemm.config.draft import KernelDraft
from cutegemm.config.invariants import roles
from cutegemm.config.invariants.rule import Refusal, Rule
from cutegemm.config.numbers import Number, implies

# values that Stream-K needs of a spec's fields: it makes its own splits and reduces them in workspace
STREAMED: dict[str, object] = {"split_k": 1, "split_reduction": "workspace"}


def whole(splits: Number, cluster_splits: Number) -> Number:
    """Every cluster adds as many splits as it has CTAs along K."""
    return splits % cluster_splits == 0


def nearest_whole(splits: int, cluster_splits: int) -> int:
    """The greatest number of splits, at most the given one and at least one cluster's, that whole clusters add."""
    return max(1, splits // cluster_splits) * cluster_splits


def _named(x: KernelDraft) -> Number:
    """A kernel names a reduction exactly if its tiles are sums of several CTAs."""
    return (x.split_reduction == "none") ^ x.adds_up


def _named_refused(x: KernelDraft) -> Refusal:
    rule = "names how splits are added where there are some, and none where there are not"
    return "split_reduction", x.split_reduction, rule, "workspace" if x.adds_up else "none"


def _whole(x: KernelDraft) -> Number:
    return whole(x.splits, x.cluster_splits)


def _whole_refused(x: KernelDraft) -> Refusal:
    rule = f"must be a multiple of the {x.cluster_splits} splits that a cluster adds"
    return "split_k", x.splits, rule, nearest_whole(x.splits, x.cluster_splits)


def _left(x: KernelDraft) -> Number:
    """A reduction of clusters' sums has more than one to add; Stream-K splits tiles among several CTAs."""
    inside = (x.split_reduction == "none") | (x.split_reduction == "cluster")
    return inside | x.streamed | (x.outer_splits > 1)


def _left_refused(x: KernelDraft) -> Refusal:
    rule = f"a cluster adds up all {x.splits} splits and leaves split_reduction={x.split_reduction!r} nothing to add"
    return "split_k", x.splits, rule, 2 * x.splits


def _held(x: KernelDraft) -> Number:
    """A reduction in clusters alone has the splits of one cluster."""
    return implies(x.split_reduction == "cluster", x.outer_splits == 1)


def _held_refused(x: KernelDraft) -> Refusal:
    rule = f'split_reduction="cluster" adds up {x.cluster_splits} splits in a cluster of {x.cluster_size}'
    return "split_k", x.splits, rule, x.cluster_splits


def _atomic(x: KernelDraft) -> Number:
    """L2 adds fp32 sums by atomics."""
    return implies(x.split_reduction == "atomic", not x.sums.whole)


def _atomic_refused(x: KernelDraft) -> Refusal:
    return "split_reduction", x.split_reduction, "atomics add fp32 sums, not those of integers", "workspace"


def _streamed(x: KernelDraft) -> Number:
    """Stream-K makes its own splits and reduces them in workspace."""
    return implies(
        x.streamed, (x.splits == STREAMED["split_k"]) & (x.split_reduction == STREAMED["split_reduction"])
    )


def _streamed_refused(x: KernelDraft) -> Refusal:
    rule = 'scheduler="stream_k" makes its own splits, which workspace reduces'
    return "split_k", x.splits, rule, STREAMED["split_k"]


def _adders(x: KernelDraft) -> Number:
    """Only the reduction launch has warpgroups that add, at most one per split."""
    if x.multiplies:
        return x.adders == 1
    return (x.adders <= x.outer_splits) & (x.cluster_splits == 1)


def _adders_refused(x: KernelDraft) -> Refusal:
    rule = "warpgroups that add splits belong to a launch that only adds, one for a split at most"
    return "adders", x.adders, rule, 1


def _sliced(x: KernelDraft) -> Number:
    """A CTA that stores a slice of a tile computed a split of it; slices are multiples of the instruction's columns."""
    whole = x.columns % (x.instruction.n_step * x.slices) == 0
    return whole & (x.slices <= x.cluster_splits if x.multiplies else True)


def _sliced_refused(x: KernelDraft) -> Refusal:
    rule = f"{x.slices} CTAs store slices of {x.columns} columns, in steps of {x.instruction.n_step}"
    return "slices", x.slices, rule, 1


KINDS = (
    Rule(roles._reduces, roles._reduces_refused, needs_tile=False),
    Rule(roles._cluster_size, roles._cluster_size_refused, needs_tile=False),
    Rule(_whole, _whole_refused, needs_tile=False),
    Rule(_left, _left_refused, needs_tile=False),
    Rule(_held, _held_refused, needs_tile=False),
    Rule(_atomic, _atomic_refused, needs_tile=False),
)
LATER = (
    Rule(_named, _named_refused, needs_tile=False),
    Rule(_streamed, _streamed_refused, needs_tile=False),
    Rule(_adders, _adders_refused, needs_tile=False),
    Rule(_sliced, _sliced_refused),
)
