# SPDX-License-Identifier: Apache-2.0
"""Exact fp32 on the CUDA cores, any strides; also the epilogue alone, where K is 0."""

from cutegemm.families.abilities import Abilities
from cutegemm.families.family import Family

FAMILY = Family(
    name="simt",
    config="cutegemm.config:SimtConfig",
    driver="cutegemm.kernels.simt:SimtGemm",
    plan="cutegemm.planning.simt:plan_simt",
    weigh="cutegemm.planning.why:weigh_simt",
    abilities={
        "simt": Abilities(
            loads=("direct",), stores=("direct",), schedulers=("per_tile",), reductions=("none", "cluster")
        )
    },
)
