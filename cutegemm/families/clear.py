# SPDX-License-Identifier: Apache-2.0
"""Zeroes counters in workspace, before a kernel whose CTAs count themselves."""

from cutegemm.families.family import Family

FAMILY = Family(
    name="clear",
    config="cutegemm.config:ClearConfig",
    driver="cutegemm.kernels.clear:Clear",
)
