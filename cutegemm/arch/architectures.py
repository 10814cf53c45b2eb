# SPDX-License-Identifier: Apache-2.0
"""The architectures that kernels can be compiled for."""

from __future__ import annotations

from cutegemm.arch import sm90
from cutegemm.arch.limits import Limits

ARCHITECTURES: dict[str, Limits] = {x.name: x for x in (sm90.LIMITS,)}

# for checks of specs and problems before a device is known
DEFAULT = sm90.LIMITS
