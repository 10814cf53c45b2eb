# SPDX-License-Identifier: Apache-2.0
"""Candidates as columns, as the parts of the model of time read them: `times.Table` has these and makes them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


class Table(Protocol):
    """What is read of `times.Table`, where it says what each is."""

    @property
    def m(self) -> Column: ...
    @property
    def n(self) -> Column: ...
    @property
    def depth(self) -> Column: ...
    @property
    def splits(self) -> Column: ...
    @property
    def held(self) -> Column: ...
    @property
    def tiles(self) -> Column: ...
    @property
    def waves(self) -> Column: ...
    @property
    def ctas(self) -> Column: ...
    @property
    def stages(self) -> Column: ...
    @property
    def delivered(self) -> Column: ...
    @property
    def traffic(self) -> Column: ...
