# SPDX-License-Identifier: Apache-2.0
"""Groups of wgmma: when they begin, what a wait covers.

A wgmma is one operation of the four warps of its warpgroup. A committed group's products are computed at once, or at
the wait that names it (late policy), or between; products of one group on the same accumulators are gathered into one
call of the tensor cores' arithmetic (`tensor_core.py`).

Source: PTX ISA 9.0, 9.7.16.7 (wgmma.commit_group, wgmma.wait_group); benchmarks/NOTES-emulator.md, synchronisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm.emulator.units.products import WARPS, Product
from cutegemm.emulator.units.products import compute as compute_products

if TYPE_CHECKING:
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.units.products import Place


class Batch:
    """The products that some warps of a warpgroup committed together, up to the warps' `upto`-th wgmma."""

    __slots__ = ("upto", "products")

    def __init__(self, upto: int, products: list[Product]) -> None:
        self.upto, self.products = upto, products


class Warpgroup:
    """Four warps whose wgmmas are one operation each: nothing begins before all four have come, one's wait covers all.

    Measured on an H200 (a warp that is late by 200,000 cycles blocks the other three where they issue, and nobody's
    wait returns before it): benchmarks/NOTES-emulator.md.
    """

    def __init__(self, first: int, warps: int) -> None:
        self.first = first
        self.issued = [0] * min(WARPS, warps - first)  # wgmmas each warp has committed
        self.waited = [0] * len(self.issued)  # wgmmas each warp has waited for
        self.batches: list[Batch] = []

    @property
    def together(self) -> int:
        """How many wgmmas all warps have issued."""
        return min(self.issued)

    def finish(self, upto: int) -> list[Product]:
        """Compute every warp's products up to the `upto`-th wgmma, and give them."""
        done = [p for batch in self.batches if batch.upto <= upto for p in batch.products]
        compute_products(done)
        return done

    def forget(self) -> None:
        """Drop what every warp has waited for."""
        least = min(self.waited)
        self.batches = [batch for batch in self.batches if batch.upto > least]

    def __str__(self) -> str:
        return f"the warpgroup of warps {self.first}..{self.first + len(self.issued) - 1}, which issued {self.issued}"


def _warpgroups_of(group: Group) -> list[Warpgroup]:
    """The warpgroups that a group's warps belong to."""
    if group.warpgroups is None:
        made = group.cta.warpgroups
        numbers = list(dict.fromkeys(w // WARPS for w in group.warps))
        for number in numbers:
            if number not in made:
                made[number] = Warpgroup(number * WARPS, group.device.warps)
        group.warpgroups = [made[number] for number in numbers]
    return group.warpgroups


def wgmma_commit(group: Group) -> bool:
    """wgmma.commit_group: a group begins once every warp of the warpgroup has come; False while one is missing."""
    if not group.wgmma_committing:
        _commit(group)
    for one in _warpgroups_of(group):
        if one.together < group.wgmma_issued:
            group.waiting, group.waiting_at = ("wgmma", one), group.pc
            return False
    group.wgmma_committing = False
    return True


def _commit(group: Group) -> None:
    group.wgmma_committing = True
    group.device.events += 1
    products = _gathered(group)
    group.wgmma_open = []
    batch = Batch(group.wgmma_issued, products)
    group.wgmma_groups.append(batch)
    for one in _warpgroups_of(group):
        one.batches.append(batch)
        for warp in group.warps:
            if warp // WARPS == one.first // WARPS:
                one.issued[warp % WARPS] = group.wgmma_issued
        begun = [p for b in one.batches if b.upto <= one.together for p in b.products if not p.offered]
        for p in begun:
            p.offered = True
        if begun:
            group.device.completion.products(begun)


def _gathered(group: Group) -> list[Product]:
    """The open products, those that follow each other on the same accumulators joined."""
    products: list[Product] = []
    latest: dict[Place, Product] = {}  # per accumulator list; the order between lists does not matter
    for p in group.wgmma_open:
        if not (p.where in latest and latest[p.where].join(p)):
            products.append(p)
            latest[p.where] = p
    return products


def wgmma_wait(group: Group, pending: int) -> None:
    """wgmma.wait_group: all but the last `pending` groups are complete, in every warp of the warpgroup."""
    upto = 0
    while len(group.wgmma_groups) > pending:
        upto = group.wgmma_groups.pop(0).upto
    if not upto:
        return
    group.device.watch.waited_for([upto], group.program)
    for one in _warpgroups_of(group):
        products = one.finish(upto)
        if group.tracker is not None:
            group.tracker.wgmma_done([token for p in products for token in p.tokens])
        for warp in group.warps:
            if warp // WARPS == one.first // WARPS:
                one.waited[warp % WARPS] = upto
        one.forget()
