# SPDX-License-Identifier: Apache-2.0
"""Copies a matrix into workspace that TMA can address."""

from cutegemm.families.abilities import Abilities
from cutegemm.families.family import Family

FAMILY = Family(
    name="relayout",
    config="cutegemm.config:RelayoutConfig",
    driver="cutegemm.kernels.relayout:Relayout",
    abilities={"relayout": Abilities()},
)
