"""`esper query`: right answers from views, one line for what is wrong, nothing written."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from esper.karn import views
from esper.karn.query import database
from esper.karn.query.catalogue import all_views
from esper.leyline import SeedStage, TelemetryEventType
from esper.leyline.text import visible
from esper.scripts.query import main
from esper.storage.sealed_json import seal
from event_files import read_jsonl
from record_tables import PAGE, written


@pytest.fixture
def ask(capsys):
    pytest.importorskip("duckdb")

    def ask(run: Path, sql: str) -> list:
        assert main([str(run), sql, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.fixture
def refused(capsys):
    pytest.importorskip("duckdb")

    def refused(run: Path, sql: str) -> str:
        assert main([str(run), sql]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        return said

    return refused


def test_the_page_lists_every_column():
    assert PAGE.read_text() == written(PAGE.read_text()), "python tests/record_tables.py"


def test_there_is_a_view_of_every_event_with_names_that_differ():
    found = {view.name: view for view in all_views()}
    assert {kind.name.lower() for kind in TelemetryEventType} < found.keys()
    for view in found.values():
        names = [column.name for column in view.columns]
        assert len(set(names)) == len(names), view.name
        assert view.doc


def test_rounds_seeds_and_members_are_those_of_the_views(ask, ppo):
    rounds = views.read_rounds(ppo)
    found = ask(ppo, "select round, score, score_low, accuracy from rounds order by round")
    assert [row["score"] for row in found] == [one.score.value for one in rounds]
    assert [row["score_low"] for row in found] == [one.score.low for one in rounds]
    (count,) = ask(ppo, "select count(*) n from seeds")
    assert count["n"] == len(views.read_seeds(ppo, 0, 9))
    (member,) = ask(ppo, "select slots[1].stage as stage from members where member = 1")
    assert member["stage"] == views.read_members(ppo)[1].slots[0].stage


def test_events_have_names_instead_of_numbers(ask, ppo):
    changes = [e for e in read_jsonl(ppo / "events.jsonl") if e.type.name == "SEED_STAGE_CHANGED"]
    expected = [SeedStage(code).name for e in changes for code in e.payload.stage_after_N]
    found = ask(ppo, "select stage_after, slot, blueprint from seed_stage_changed order by event")
    assert [row["stage_after"] for row in found] == expected
    setup = views.read_setup(ppo)
    assert {row["slot"] for row in found} <= set(setup.slots)
    (update,) = ask(ppo, "select approx_kl, head_entropy from ppo_updated where round = 1")
    assert update["approx_kl"] == views.read_ppo(ppo)[1].approx_kl
    outcome = ask(ppo, "select blueprint_by_slot from episode_outcome")
    assert all(len(row["blueprint_by_slot"]) == len(setup.slots) for row in outcome)


def test_every_view_answers(ask, ppo):
    for view in all_views():
        found = ask(ppo, f"select * from {view.name} limit 3")
        assert all(row.keys() == {one.name for one in view.columns} for row in found), view.name


def test_a_live_run_answers_while_its_last_part_is_replaced(ask, ppo, tmp_path):
    shutil.copytree(ppo, tmp_path / "run")
    last = tmp_path / "run" / "events" / "ROUND_COMPLETED"
    (last / ".part-00001.parquet.x.tmp").write_bytes(b"PAR1")  # what a killed writer leaves
    assert len(ask(tmp_path / "run", "select * from round_completed")) == 3


def test_csv_and_tables_hold_the_same(ppo, capsys):
    pytest.importorskip("duckdb")
    sql = "select round, step, score, stages from (select *, 1 as step from rounds)"
    assert main([str(ppo), sql, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    scores = [one.score.value for one in views.read_rounds(ppo)]
    assert np.allclose([float(row["score"]) for row in rows], scores)
    assert main([str(ppo), "select round from rounds", "--rows", "1"]) == 0
    assert "2 more rows" in capsys.readouterr().out
    assert main([str(ppo), "select round from rounds", "--rows", "1" + 30 * "0"]) == 0
    assert "more rows" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec 1", "syntax error"),
        ("select nope from rounds", '"nope" not found'),
        ("select 1; select 2", "2 statements"),
        ("delete from rounds", "give a SELECT"),
        ("copy (select 1) to 'stolen.csv'", "give a SELECT"),
        ("select * from read_csv('/etc/passwd')", "Permission Error"),
        ("select * from rounds2", "rounds2"),
    ],
)
def test_a_bad_query_is_one_line(refused, ppo, sql, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(ppo, sql)
    assert not list(tmp_path.iterdir())


EVIL = (
    "{blueprints}",
    "'], read_text('secret.txt')) --",
    "x'); COPY (SELECT 1) TO 'stolen.csv'; --",
    "a\"b\\ ''; DROP VIEW rounds; {slots}\x00\x1b[31m",
    "[1]); COPY (SELECT 1) TO 'stolen.csv'; SELECT ([",
)


def renamed(run: Path, **names: list[str]) -> None:
    """Change names in the event that a run starts with."""
    (part,) = (run / "events" / "RUN_STARTED").glob("*.parquet")
    table = pq.read_table(part)
    for name, found in names.items():
        at = table.schema.get_field_index(name)
        column = pa.array([found] * len(table), table.schema.field(at).type)
        table = table.set_column(at, table.schema.field(at), column)
    pq.write_table(table, part)


@pytest.mark.parametrize("slot", EVIL)
def test_names_in_a_run_are_names_whatever_they_hold(ask, ppo, tmp_path, monkeypatch, slot):
    run = tmp_path / "run"
    shutil.copytree(ppo, run)
    (tmp_path / "secret.txt").write_text("SECRET")
    monkeypatch.chdir(tmp_path)
    blueprint = ", (SELECT content FROM read_text('secret.txt')), "
    renamed(run, slot_ids=[slot] * 9, blueprints=[blueprint] * 9)
    found = ask(run, "select slot, blueprint from seed_germinated")
    assert {(row["slot"], row["blueprint"]) for row in found} == {(visible(slot), blueprint)}
    outcomes = ask(run, "select blueprint_by_slot as found from episode_outcome")
    assert {one for row in outcomes for one in row["found"]} <= {blueprint, None}
    assert sorted(os.listdir(tmp_path)) == ["run", "secret.txt"]


def test_what_becomes_sql_by_mistake_can_open_no_file(refused, ppo, tmp_path, monkeypatch):
    copy = "SELECT 1; COPY (SELECT 1) TO 'stolen.csv'; SELECT 1 FROM (SELECT 1 AS round)"
    monkeypatch.setattr(database, "select_events", lambda *_: copy)
    monkeypatch.chdir(tmp_path)
    assert "Permission Error" in refused(ppo, "select slot from seed_germinated")
    assert not list(tmp_path.iterdir())


def test_a_session_that_began_at_no_time_is_no_sql(ask, ppo, tmp_path):
    shutil.copytree(ppo, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    info = json.loads(path.read_text())
    later = info["sessions"][0] | {"started": "never", "from_round": 1}
    info["sessions"].append(later)
    path.write_text(json.dumps(seal(info)))
    assert len(ask(tmp_path / "run", "select * from round_completed")) == 1


def test_without_duckdb_one_line_says_what_to_install(ppo, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert main([str(ppo), "select 1"]) == 2
    assert "pip install '.[query]'" in capsys.readouterr().err


def test_without_a_query_the_views_and_what_their_columns_are_is_listed(ppo, capsys):
    assert main([str(ppo)]) == 0
    said = capsys.readouterr().out
    assert "rounds: One round" in said
    assert "    clip_fraction DOUBLE\n" in said
    assert "    grad_norm DOUBLE  Before clipping.\n" in said


def test_the_process_prints_the_answer_and_nothing_else(ppo):
    pytest.importorskip("duckdb")
    command = [sys.executable, "-m", "esper", "query", str(ppo), "select count(*) n from rounds"]
    done = subprocess.run([*command, "--csv"], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["n", "3"], "")
