# SPDX-License-Identifier: Apache-2.0
"""Entries that the cost model makes needless go, and none of them ships."""

import dataclasses

import pytest

from benchmarks import prune
from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import H200
from cutegemm.database import Entry, key_of
from cutegemm.database.entry import config_digest
from cutegemm.database.exchange import SHIPPED, read, write
from cutegemm.errors import InputError
from cutegemm.planning.planner import plan

OF = problem(512, 512, 512)
# a kernel that no planner chooses
OTHER = {"tile": [64, 16, 16], "swap": False}


def entry(of, **fields):
    """An entry of a problem, and its key."""
    config = plan(GemmSpec(**fields), of, H200).config
    found = Entry(
        fields=fields, config=config_digest(config), ptx="", us=1.0, spread=0.0, model_us=1.0, tried=1,
        complete=True, date="2026-01-02T00:00:00+00:00", made_with="",
    )  # fmt: skip
    return key_of(GemmSpec(), of, H200), found


def test_no_entry_that_ships_is_what_the_model_chooses():
    """If the planner has come to choose what was tuned, run `python -m benchmarks.prune`."""
    entries = read(SHIPPED)
    assert entries and not prune.pruned(entries)[1]


def test_entries_that_the_model_equals_go(tmp_path, capsys):
    """One that leaves all to the model, and one that names all that it chooses; another tile stays."""
    deep = problem(512, 512, 1024)
    chosen = dict(plan(GemmSpec(), deep, H200).why.taken.fields)
    fields = {name: list(x) if isinstance(x, (Tile, tuple)) else x for name, x in chosen.items()}
    assert "tile" in fields
    (one, bare), (two, named) = entry(OF), entry(deep, **fields)
    other, kept = entry(problem(512, 1024, 512), **OTHER)
    path = tmp_path / "file.json"
    write(path, {one: bare, two: named, other: kept})
    before = path.read_bytes()
    assert prune.main(["--file", str(path), "--check"]) == 1 and path.read_bytes() == before
    assert prune.main(["--file", str(path)]) == 0 and set(read(path)) == {other}
    assert f"512 x 512 x 512 x 1; {one.kind}: {prune.EQUAL}" in capsys.readouterr().out
    assert prune.main(["--file", str(path), "--check"]) == 0


def test_expired_entries_go_if_asked():
    """Without --expired they stay, as a best guess."""
    key, found = entry(OF, **OTHER)
    changed = {key: dataclasses.replace(found, config="0" * 16)}
    assert not prune.pruned(changed)[1] and prune.pruned(changed, expired=True) == ({}, {key: prune.EXPIRED})
    assert not prune.pruned({key: found}, expired=True)[1]


def test_a_key_that_is_no_plain_problem_is_refused():
    """A C, or a GPU without a record: the key is named."""
    key, _ = entry(OF)
    for wrong in (key._replace(gpu="none"), key._replace(kind=f"{key.kind}; c bf16 row-major")):
        with pytest.raises(InputError) as e:
            prune.asked(wrong)
        assert e.value.field == "key"
