# SPDX-License-Identifier: Apache-2.0
"""What `build` takes: the problem's own entry if there is one, else the model's choice."""

from __future__ import annotations

import dataclasses
import sqlite3
import warnings

import pytest
import torch

import cutegemm
from benchmarks import prune
from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H100, H200
from cutegemm.compiling import kernel_cache
from cutegemm.database import Database, choice, choose, exchange, key_of
from cutegemm.database.entry import digest, gpu_text
from cutegemm.errors import InputError
from cutegemm.planning.planner import plan
from tests.support.tuned import entry, filled

OF = problem(512, 512, 512)
MODEL = "the model (NVIDIA H200, predicted)"
# the tile of tests.support.compiled's kernel, so that nothing new is compiled
SMALL = {"tile": [128, 64, 64]}


def test_an_entry_is_taken_and_said(tmp_path):
    """The plan is the entry's under the spec that was asked, and says so; the planner itself knows nothing of it."""
    database = filled(tmp_path / "a.sqlite", OF)
    found = choose(GemmSpec(), OF, H200, database)
    assert found.plan.config.tile == (128, 64, 64) and found.plan.spec == GemmSpec()
    assert found.plan.chosen_by == "database (NVIDIA H200, 2026-01-02, measured 3.5 us)"
    assert "\nchosen by: database (NVIDIA H200, 2026-01-02, measured 3.5 us)" in str(found.plan)
    own = plan(GemmSpec(), OF)
    assert own.config.tile != (128, 64, 64) and not own.chosen_by and "chosen by" not in str(own)
    assert found.plan.why.taken.what.startswith("tile (128, 64, 64)")


def test_an_entry_that_breaks_an_invariant_is_named_once(tmp_path):
    """A launch that adds the splits of one cluster has nothing to add: the model chooses, and one warning says why."""
    database, of = filled(tmp_path / "a.sqlite", OF), problem(512, 512, 640)
    fields = {"tile": [128, 64, 64], "cluster": [1, 1, 2], "split_k": 2, "split_reduction": "launch"}
    database.put(key_of(GemmSpec(), of, H200), dataclasses.replace(entry(OF), fields=fields))
    said = r"^database: the entry of 512 x 512 x 640 for NVIDIA H200, 132 SMs is ignored: split_k=2: a cluster adds"
    with pytest.warns(RuntimeWarning, match=said):
        found = choose(GemmSpec(), of, H200, database)
    assert found.entry is None and found.plan.config == plan(GemmSpec(), of).config
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(GemmSpec(), of, H200, database).entry is None


def test_the_model_chooses_otherwise(tmp_path, monkeypatch):
    """For another GPU, another spec, an empty D, an entry that does not serve, or where it is asked for."""
    database = filled(tmp_path / "a.sqlite", OF)
    others = [(GemmSpec(), OF, H100), (GemmSpec(stages=3), OF, H200), (GemmSpec(), problem(0, 1, 1), H200)]
    for spec, of, device in others:
        found = choose(spec, of, device, database)
        assert (
            found.plan == plan(spec, of, device)
            and found.plan.chosen_by == f"the model ({device.name}, predicted)"
            and found.entry is None
        )
    refused = dataclasses.replace(entry(OF), fields={"tile": [128, 256, 64], "stages": 16})
    database.put(key_of(GemmSpec(), OF, H200), refused)
    with pytest.warns(RuntimeWarning, match="is ignored: stages=16"):
        assert choose(GemmSpec(), OF, H200, database).plan.chosen_by.endswith(
            "predicted): the database entry does not apply"
        )
    for word in ("off", "0"):
        monkeypatch.setenv("CUTEGEMM_DATABASE", word)
        assert choose(GemmSpec(), OF, H200, filled(tmp_path / f"{word}.sqlite", OF)).plan.chosen_by == MODEL
    monkeypatch.setenv("CUTEGEMM_DATABASE", "model")
    with pytest.raises(InputError, match="CUTEGEMM_DATABASE='model': must be one of"):
        choose(GemmSpec(), OF, H200)


def test_given_fields_are_honoured(tmp_path):
    """An entry fills only what the spec leaves open."""
    spec = GemmSpec(cluster=(2, 1))
    database = filled(tmp_path / "a.sqlite", OF, spec=spec)
    found = choose(spec, OF, H200, database).plan
    assert found.config.cluster == (2, 1) and found.config.tile == (128, 64, 64)


def test_types_that_are_given_are_the_problems(tmp_path):
    """A spec that names the problem's own types finds the entry of the spec without; other types have other keys."""
    database = filled(tmp_path / "a.sqlite", OF)
    told = GemmSpec(
        a_dtype="bf16", b_dtype="bf16", d_dtype="bf16", acc_dtype="fp32", a_major="k", b_major="n"
    )
    found = choose(told, OF, H200, database).plan
    assert found.chosen_by.startswith("database (") and found.spec == told
    assert key_of(GemmSpec(), problem(512, 512, 512, dtype="fp16"), H200) not in database.entries()


@epi.define
def with_norm(acc):
    """The rows and their sums of squares."""
    return epi.Output(d=epi.Store(acc, "fp32"), norm=epi.SumSquares(acc, axis=1))


INVARIANT = [
    (GemmSpec(), {"split_k": 2, "split_reduction": "cluster", "cluster": [1, 1, 2], "tile": [128, 64, 64]}),
    (GemmSpec(epilogue=with_norm), {"swap": True, "tile": [64, 128, 64]}),
    (GemmSpec(epilogue=with_norm), {"tile": [128, 64, 64]}),
    (GemmSpec(a_dtype="fp32"), {"tile": [64, 64, 16], "stages": 2, "split_k": 2}),
]


@pytest.mark.parametrize("spec,fields", INVARIANT, ids=["parts", "swapped", "columns", "cuda cores"])
def test_no_entry_changes_what_batch_invariant_fixes(tmp_path, spec, fields):
    """An entry of one M that adds in another order is not taken: of another M there is none."""
    graph = None if spec.epilogue == "auto" else spec.epilogue
    of = problem(64, 1024, 4096, dtype="bf16" if spec.a_dtype == "auto" else "fp32", epilogue=graph)
    for invariant in (False, True):
        asked = dataclasses.replace(spec, batch_invariant=invariant)
        database = filled(tmp_path / f"{invariant}.sqlite", of, spec=asked, fields=fields)
        found = choose(asked, of, H200, database)
        assert (found.entry is None) is invariant
        assert found.plan.chosen_by.endswith("predicted): the database entry does not apply") is invariant


def test_sums_in_chances_order_are_only_asked_for(tmp_path):
    """An entry that adds splits in arrival order serves a spec that says so, and no other."""
    parts = {"tile": [128, 64, 64], "split_k": 4, "split_reduction": "atomic"}
    asked = GemmSpec(split_reduction="atomic")
    database = filled(tmp_path / "a.sqlite", OF, spec=asked, fields=parts)
    assert choose(asked, OF, H200, database).plan.config.split_reduction == "atomic"
    kept = database.get(key_of(asked, OF, H200))
    database.put(key_of(GemmSpec(), OF, H200), kept)
    assert choose(GemmSpec(), OF, H200, database).plan.chosen_by.endswith(
        "predicted): the database entry does not apply"
    )


def test_an_entry_is_used_for_its_exact_extents_only(tmp_path):
    """A problem without an entry of its own gets the model's choice, however near another entry is."""
    of = problem(4096, 4096, 4608)
    database = filled(tmp_path / "a.sqlite", of, fields={"tile": [128, 256, 64], "cluster": [2, 1]})
    assert choose(GemmSpec(), of, H200, database).plan.chosen_by.startswith("database (")
    assert choose(GemmSpec(), problem(4096, 4096, 4600), H200, database).plan.chosen_by == MODEL


def test_choices_are_remembered_until_the_database_changes(tmp_path, monkeypatch):
    """An entry that this process or another one writes, another folder, and `off` are seen."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    of, count = problem(520, 512, 512), []
    real = choice.find
    monkeypatch.setattr(choice, "find", lambda *args, **more: count.append(1) or real(*args, **more))
    assert [choose(GemmSpec(), of, H200).plan.chosen_by for _ in range(3)] == [MODEL] * 3 and len(count) == 1
    filled(tmp_path / "tuned.sqlite", of)
    assert choose(GemmSpec(), of, H200).plan.chosen_by.startswith("database (") and len(count) == 2
    file = sqlite3.connect(tmp_path / "tuned.sqlite", isolation_level=None)
    file.execute("DELETE FROM entries")
    file.close()
    monkeypatch.setattr(choice._STATE, "_until", 0.0)
    assert choose(GemmSpec(), of, H200).plan.chosen_by == MODEL
    filled(tmp_path / "b" / "tuned.sqlite", of)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "b"))
    assert choose(GemmSpec(), of, H200).plan.chosen_by.startswith("database (")
    monkeypatch.setenv("CUTEGEMM_DATABASE", "off")
    assert choose(GemmSpec(), of, H200).plan.chosen_by == MODEL


def test_what_ships_is_used_and_the_users_own_comes_first(tmp_path, monkeypatch):
    """An entry of the package serves where the user has none as near."""
    database, file = filled(tmp_path / "a.sqlite", OF), tmp_path / "shipped.json"
    exchange.export(file, database)
    monkeypatch.setattr(exchange, "SHIPPED", file)
    exchange.shipped.cache_clear()
    try:
        assert choose(GemmSpec(), OF, H200, Database(tmp_path / "none")).plan.chosen_by.startswith(
            "shipped database ("
        )
        assert choose(GemmSpec(), OF, H200, database).plan.chosen_by.startswith("database (")
    finally:
        monkeypatch.undo()
        exchange.shipped.cache_clear()


def test_a_field_that_configs_gained_later_expires_nothing():
    """What shipped before a config had a field is of the same kernel where the field has the value of before."""
    spec, of = prune.asked(next(x for x in exchange.shipped() if x.gpu == gpu_text(H200)))
    by = cutegemm.plan(spec, of, H200).chosen_by
    assert by.startswith("shipped database") and "expired" not in by


def test_an_entry_of_another_kernel_is_expired_and_still_orders(tmp_path):
    """A changed config or PTX is told; the choice is still tried first. Other entries are as good as before."""
    of, other = OF, problem(1024, 512, 512)
    database = filled(tmp_path / "a.sqlite", of, other)
    kept = database.get(key_of(GemmSpec(), of, H200))
    database.put(key_of(GemmSpec(), of, H200), dataclasses.replace(kept, config="0" * 16))
    found = choose(GemmSpec(), of, H200, database).plan
    assert found.config.tile == (128, 64, 64)
    assert found.chosen_by.endswith("expired: its kernel has changed since; tune again")
    assert "expired" not in choose(GemmSpec(), other, H200, database).plan.chosen_by
    assert kept.expired(found.config, "other ptx") and not kept.expired(found.config, "ptx")


def test_build_run_and_explain_take_the_same(tmp_path, monkeypatch):
    """`build`, a run and `explain` take the entry; `explain` compares the PTX that it has compiled."""
    stored = kernel_cache.directory()
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    (tmp_path / "kernels").symlink_to(stored)
    database = filled(tmp_path / "tuned.sqlite", OF, fields=SMALL)
    gemm = cutegemm.build(GemmSpec(), OF)
    assert gemm.plan.config.tile == (128, 64, 64)
    assert "chosen by: database (NVIDIA H200" in gemm.explain() and "\nexpired" in gemm.explain()
    key = key_of(GemmSpec(), OF, H200)
    database.put(key, dataclasses.replace(database.get(key), ptx=digest(gemm.ptx)))
    assert "expired" not in gemm.explain(OF) and "expired" not in cutegemm.build(GemmSpec(), OF).explain()
    meta = torch.empty(512, 512, dtype=torch.bfloat16, device="meta")
    gemm.run(meta, meta)
    (prepared,) = gemm._kinds.values()
    assert prepared.kind.plan.config == gemm.plan.config


def test_explain_speaks_of_the_choice_that_was_made(tmp_path, monkeypatch):
    """An entry that comes later is of later kernels."""
    stored = kernel_cache.directory()
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    (tmp_path / "kernels").symlink_to(stored)
    given = GemmSpec(tile=Tile(128, 64, 64))
    gemm = cutegemm.build(given, OF)
    filled(tmp_path / "tuned.sqlite", OF, spec=given, config="0" * 16)
    assert "chosen by: the model" in gemm.explain() and "expired" not in gemm.explain()
    assert "\nexpired" in gemm.explain(OF) and "\nexpired" in cutegemm.build(given, OF).explain()
