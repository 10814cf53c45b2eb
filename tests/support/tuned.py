# SPDX-License-Identifier: Apache-2.0
"""Entries of a database that nobody measured, for tests of what is done with them."""

from __future__ import annotations

from pathlib import Path

from cutegemm import GemmSpec, Problem
from cutegemm.arch.device import Device
from cutegemm.arch.records import H200
from cutegemm.database import Database, Entry, key_of
from cutegemm.database.entry import config_digest, digest, refined
from cutegemm.planning.planner import plan

AUTO = GemmSpec()
TILE = {"tile": [128, 64, 64], "cluster": [1, 1], "schedule": "cooperative", "swap": False}


def entry(of: Problem, spec: GemmSpec = AUTO, fields=TILE, device: Device = H200, **changed) -> Entry:
    """An entry whose config is what its fields give now."""
    config = plan(refined(spec, fields), of, device).config
    known = {
        "fields": fields,
        "config": config_digest(config),
        "ptx": digest("ptx"),
        "us": 3.5,
        "spread": 0.01,
        "model_us": 4.0,
        "tried": 5,
        "complete": True,
        "date": "2026-01-02T03:04:05",
        "made_with": "DSL 1, driver 2",
    }
    return Entry(**known | changed)


def filled(path: Path, *problems: Problem, spec: GemmSpec = AUTO, **changed) -> Database:
    """A database with an entry of each problem."""
    database = Database(path)
    for of in problems:
        database.put(key_of(spec, of, H200), entry(of, spec, **changed))
    return database
