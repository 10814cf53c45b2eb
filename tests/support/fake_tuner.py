# SPDX-License-Identifier: Apache-2.0
"""A tuner on a fake GPU, whose candidates are rasters of one tile, so that nothing is compiled."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from cutegemm import GemmSpec, Tile, problem
from cutegemm.database import Database
from cutegemm.database.entry import config_digest
from cutegemm.tuning import tuner as tuning
from cutegemm.tuning.outcomes import Screen
from cutegemm.tuning.race import Regime
from cutegemm.tuning.tuner import Tuner, each
from tests.support.fake_bench import FakeBench

# one tile, so that candidates are rasters: ("m", 8), ("m", 4), ("m", 16), ("n", 8), and two streams, the
# second with the raster that leads
SPEC = GemmSpec(tile=Tile(64, 32, 32), consumers=1, stages=2)
OF, OTHER = problem(1088, 256, 64), problem(1088, 320, 64)
# the model's choice, in full
OWN = {"schedule": "cooperative", "swap": False, "cluster": [1, 1], "split_k": 1, "raster": ["m", 8]}
QUICK = Regime(preheat=0.0, sample=1e-4, pairs=3)
COSTS = {("m", 8): 4e-6, ("m", 4): 3e-6, ("m", 16): 2e-6, ("n", 8): 5e-6}


def cost(plan):
    """Seconds of a call: the raster's, and a stream takes longest."""
    return 9e-6 if plan.config.streamed else COSTS[plan.raster]


def fake_tuner(folder: Path, monkeypatch) -> Tuner:
    """A tuner whose kernels are not compiled: a kernel's PTX is its config's digest."""
    made = Tuner(SPEC, FakeBench(cost), Database(folder / "t.sqlite"), 32, QUICK, compile=list)
    monkeypatch.setattr(tuning, "_ptx", lambda plan: config_digest(plan.config))
    monkeypatch.setattr(Tuner, "_valid", lambda self, entry, of: not entry.made_with.endswith("expired"))
    return made


def go(tuner, *problems, again=False):
    """The outcomes of problems."""
    with Screen(Console(file=io.StringIO()), len(problems)) as screen:
        return list(each(tuner, problems, screen, again))
