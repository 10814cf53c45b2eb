# SPDX-License-Identifier: Apache-2.0
"""Whether a plan under more fields than a spec gives keeps what `batch_invariant` promises of the spec itself.

A given field is the same for every M. What a tuner or a database adds follows M, and so must change no bit of a row.
"""

from __future__ import annotations

from cutegemm.config import KernelConfig, SimtConfig
from cutegemm.planning import invariance
from cutegemm.planning.candidates import Candidate, cut
from cutegemm.planning.cuts import given_splits
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.request import Request, requested
from cutegemm.spec import AUTO, GemmSpec, Tile, tile_fault


def keeps_bits(spec: GemmSpec, made: KernelPlan) -> bool:
    """Whether a plan adds in an order that the planner, too, could take under `spec`; true of specs that ask for none.

    Args:
        spec: what was given.
        made: of a spec with more fields, for the same problem.
    """
    config = made.config
    if spec.batch_invariant is not True or config is None or not made.problem.k:
        return True
    asked, family = requested(spec, made.problem, made.device)
    if isinstance(config, SimtConfig):
        alone = config.slices == 1 or spec.tile != AUTO
        return family.limits is None and alone and config.split == given_splits(spec)
    assert isinstance(config, KernelConfig)
    if family.limits is None or config.streamed:
        return False
    if invariance.along_rows(asked) and made.swapped != _turned(spec):
        return False
    return _pinned(asked, Candidate.of(config), made.swapped)


def _turned(spec: GemmSpec) -> bool:
    """Whether what is given swaps operands."""
    if isinstance(spec.swap, bool):
        return spec.swap
    return isinstance(spec.tile, Tile) and tile_fault(spec.tile) is not None


def _pinned(asked: Request, found: Candidate, swapped: bool) -> bool:
    """Whether a kernel has the columns, the depth and the parts of K that are the same for every M."""
    spec, parts = asked.spec, given_splits(asked.spec)
    if found.splits != parts or not invariance.allows(invariance.pinned(asked, swapped), found):
        return False
    return parts == 1 or found == cut(spec, found, parts, asked.device.limits)


__all__ = ["keeps_bits"]
