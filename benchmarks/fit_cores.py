# SPDX-License-Identifier: Apache-2.0
"""Measured tiles of CUDA-core kernels, and how well their cost model ranks them (`cutegemm.planning.simt_tiles`).

Files of `benchmarks.probes.simt_tiles` name arbitrary tiles; specs of sweeps and tuning databases name tiles of the
planner's list.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import candidates as specs
from benchmarks import tuned_rows
from benchmarks.fit_loads import Timed, fared
from cutegemm import Problem, problem
from cutegemm.arch.device import CoreModel, Device
from cutegemm.arch.records import RECORDS
from cutegemm.config import SimtConfig, SimtTile
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.planning.simt_tiles import estimate

# the constants, the part of a device that holds them, and what is measured
NAMES = tuple(x.name for x in dataclasses.fields(CoreModel))
PART, WHAT = "cores", "tiles"
FILES = "*.json"
# spec fields that determine a tile
CHOSEN = {"schedule", "tile", "stages", "split_k"}
SUITE = "cores"
Tiles = Timed[SimtTile]


def name_of(x: SimtTile) -> str:
    """A short name of a tile: its extents and every field that is not the default."""
    words = [f"{'S' if x.staged else 'R'}{'x'.join(map(str, x.tile))}"]
    for field in dataclasses.fields(x):
        value = getattr(x, field.name)
        if field.name not in ("tile", "staged") and value != field.default:
            words.append(f"{field.name}={'x'.join(map(str, value)) if isinstance(value, tuple) else value}")
    return " ".join(words)


def tile_of(name: str) -> SimtTile | None:
    """The tile with a name of `name_of`; None if the text is not a name."""
    first, *words = name.split()
    if first[0] not in "SR" or not first[1:].replace("x", "").isdigit():
        return None
    fields: dict[str, Any] = {"tile": _extents(first[1:]), "staged": first[0] == "S"}
    for word in words:
        field, value = word.split("=")
        fields[field] = _extents(value) if "x" in value else int(value)
    return SimtTile(**fields)


def _extents(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def read(paths: Sequence[Path]) -> list[Tiles]:
    """The problems with two or more timed tiles."""
    found: dict[tuple[str, Problem, Path], Tiles] = {}
    for path in paths:
        for gpu, suite, of, tile, us in _rows(path):
            group = found.setdefault((gpu, of, path), Tiles(gpu, suite, of, {}))
            group.us[tile] = min(us, group.us.get(tile, us))
    return [x for x in found.values() if len(x.us) > 1]


def _rows(path: Path) -> Iterator[tuple[str, str, Problem, SimtTile, float]]:
    if path.suffix == tuned_rows.SUFFIX:
        for record in RECORDS:
            yield from _swept(tuned_rows.document(path, record.name))
        return
    data = json.loads(path.read_text())
    if isinstance(data.get("problems"), list):
        for of in data["problems"]:
            posed = problem(*_extents(of["shape"]), dtype="fp32", majors=of["majors"])
            for name, row in of["rows"].items():
                tile = tile_of(name)
                if tile is not None:
                    yield data["gpu"], SUITE, posed, tile, row["us"]
    elif data.get("rows") and "spec" in data["rows"][-1]:
        yield from _swept(data)


def _swept(data: dict[str, Any]) -> Iterator[tuple[str, str, Problem, SimtTile, float]]:
    """Rows whose specs determine only a CUDA-core tile."""
    for row in data["rows"]:
        spec = row.get("spec")
        if row["dtype"] != "fp32" or not spec or not {"tile"} <= set(spec) <= CHOSEN or not row.get("ratio"):
            continue
        of = tuned_rows.problem_of(row)
        try:
            config = plan(specs.spec(spec), of).config
        except GemmError:
            continue
        if isinstance(config, SimtConfig):
            tile = SimtTile(**{x.name: getattr(config, x.name) for x in dataclasses.fields(SimtTile)})
            baseline_us = row.get("baseline_us") or row["us"] * row["ratio"]
            yield data["environment"]["gpu"], row.get("suite", SUITE), of, tile, baseline_us / row["ratio"]


def predicted(of: Tiles, device: Device) -> dict[SimtTile, float]:
    """Predicted microseconds of each tile."""
    return {x: estimate(of.problem, x, device) / 1e3 for x in of.us}


def score(of: Tiles, device: Device, blur: float) -> tuple[float, float, float]:
    """How well the device's model ranks the tiles of a problem (`fit_loads.fared`)."""
    return fared(predicted(of, device), of.us, blur)
