# SPDX-License-Identifier: Apache-2.0
"""Finishes a reduction: partial results into results, in a fixed order."""

from cutegemm.families.abilities import Abilities
from cutegemm.families.family import Family

FAMILY = Family(
    name="finish",
    config="cutegemm.config:FinishConfig",
    driver="cutegemm.kernels.finish:Finish",
    abilities={"finish": Abilities()},
)
