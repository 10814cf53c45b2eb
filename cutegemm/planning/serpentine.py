# SPDX-License-Identifier: Apache-2.0
"""Whether a walk turns back: along K from wave to wave, and along a panel from one to the next.

Clusters that work beside each other load the same tiles at about the same time, so what they loaded last is in L2 when
their wave ends. Two waves of a panel share an operand's tiles: where the second begins with the k tiles that the first
ended with, and a panel with the columns that the one before it ended with, some of them need no device memory.
"""

from __future__ import annotations

from cutegemm.families import of_schedule
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.setting import Setting

# of L2: an operand that takes less stays there while the other streams by
SHARE = 0.25


def turns_back(setting: Setting, candidate: Candidate) -> bool:
    """Whether a candidate's walk does, where L2 does not hold both operands and there is more than one wave.

    Not under `batch_invariant`: the order in which k tiles are added would depend on a row's place.
    """
    spec, problem = setting.spec, setting.problem
    steady = spec.scheduler not in ("stream_k", "dynamic") and candidate.splits == 1
    loads = not setting.loads.gathers and of_schedule(candidate.schedule).roles.producers > 0
    tiles = candidate.tiles(problem)
    sizes = (problem.a.bytes, problem.b.bytes)
    large = sum(sizes) > setting.l2_bytes and min(sizes) > SHARE * setting.l2_bytes and tiles > setting.sms
    return steady and loads and large and spec.batch_invariant is not True
