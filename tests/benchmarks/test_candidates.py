# SPDX-License-Identifier: Apache-2.0
"""Specs from a JSON file: expanded, named, and refused where they are none."""

import json

import pytest

from benchmarks import candidates
from cutegemm import GemmSpec, Tile


def write(path, entries):
    """The path of a file with these entries."""
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return path


def test_any_stands_for_each_of_its_values(tmp_path):
    """An entry with open values becomes every choice of them, in order, and a spec that stands twice counts once."""
    tiles = {"any": [[128, 256, 64], [128, 192, 64]]}
    entries = [{}, {"tile": tiles, "stages": {"any": [3, 4]}}, {"stages": 4, "tile": [128, 256, 64]}]
    found = candidates.load(write(tmp_path / "s.json", entries))
    assert [candidates.label(fields) for fields in found] == [
        "auto",
        "stages 3, tile 128x256x64",
        "stages 4, tile 128x256x64",
        "stages 3, tile 128x192x64",
        "stages 4, tile 128x192x64",
    ]
    assert candidates.spec(found[1]) == GemmSpec(tile=Tile(128, 256, 64), stages=3)
    assert candidates.spec({"raster": ["m", 8]}) == GemmSpec(raster=("m", 8))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("not json", "must be JSON"),
        ([], "must be a list of objects, one at least"),
        ({"tile": [1, 2, 3]}, "must be a list of objects"),
        ([{}, {"tiles": [128, 256, 64]}], "entry 1: .*tiles"),
        ([{"stages": {"any": [4, 0]}}], "entry 0: stages=0"),
    ],
)
def test_a_file_that_is_no_list_of_specs_is_refused(tmp_path, entries, message):
    """The error names the file, the entry and what is wrong with it, before anything is measured."""
    with pytest.raises(ValueError, match=message):
        candidates.load(write(tmp_path / "s.json", entries))
