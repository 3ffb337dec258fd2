"""`esper bench`: lists, judges, draws, and runs only the code that is named."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from audit_support import SmallAudit
from esper_lab import bench as records
from esper_lab.audit.packed import pack_audit
from esper_lab.commands.bench import main

FEW = ("--policies", "table", "--episodes", "2")
MINE = """
import numpy as np

class Mine:
    def __init__(self, bench, contexts):
        self.contexts = contexts

    def plan(self, obs):
        return np.zeros(len(obs.topology_N), dtype=np.int64)

    def stop(self, obs, step):
        return np.full(len(obs.topology_N), step >= 2)

class Fails(Mine):
    def plan(self, obs):
        return obs.nothing

class Wrong(Mine):
    def plan(self, obs):
        return None

class Idle:
    def __init__(self, bench, contexts):
        pass

class Peeks(Mine):
    def reveal(self, episodes):
        self.seen = episodes.host_N

NUMBER = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "small"
    SmallAudit().run(path, grown=0)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def lines_of(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(name)]


def test_alone_it_lists_what_ships(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    for name in records.names():
        (line,) = lines_of(said, f"{name} ")
        found = records.load(name)
        assert line.split()[1:4] == [
            str(n) for n in (len(found.context_C), len(found.topologies), found.hosts)
        ]
    assert main(["--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(records.names())
    assert all(entry["bytes"] > 1000 and 0 < entry["bare_score"] < 1 for entry in listed)


def test_a_leaderboard_of_the_chosen_policies(folder, capsys):
    assert main([str(folder), *FEW, "--quiet"]) == 0
    said = capsys.readouterr().out
    names = [line.split()[0] for line in said.splitlines()[3:6]]
    assert sorted(names) == ["one", "oracle*", "table"]
    assert said.startswith("small\n")


def test_several_records_are_averaged_at_the_end(folder, capsys):
    assert main([str(folder), "digits_impaired", *FEW, "--quiet"]) == 0
    said = capsys.readouterr().out
    head, *rows = said[said.index("\ngap closed  ") + 1 :].splitlines()
    assert head.split() == ["gap", "closed", "small", "digits_impaired", "mean"]
    assert rows[0].split() == ["oracle*", "+1.00", "+1.00", "+1.00"]


def test_out_gets_tables_and_a_picture_of_each(folder, here, capsys):
    assert main([str(folder), *FEW, "--policy", "mine.py:Mine", "--out", "out", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert sorted(path.name for path in (here / "out").iterdir()) == [
        "leaderboard.json",
        "leaderboard.txt",
        "small.png",
    ]
    assert (here / "out" / "small.png").read_bytes().startswith(b"\x89PNG")
    assert (here / "out" / "leaderboard.txt").read_text().strip() in said
    written = json.loads((here / "out" / "leaderboard.json").read_text())
    assert {row["name"] for row in written["small"]["policies"]} == {
        "table",
        "one",
        "oracle",
        "Mine",
    }


def test_json_is_all_that_is_printed(folder, capsys):
    assert main([str(folder), *FEW, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in printed["small"]["policies"]}
    assert rows["oracle"]["sees_all"]
    assert rows["one"]["gap_closed"] == 0.0


def test_progress_is_shown(folder, capsys):
    assert main([str(folder), *FEW]) == 0
    shown = lines_of(capsys.readouterr().out, "small (")
    assert len(shown) >= 5
    assert any("table" in line for line in shown)


def test_prices_are_those_of_the_episodes(folder, capsys):
    scores = []
    for price in ("0.1", "4"):
        assert main([str(folder), *FEW, "--json", "--prices", price, price]) == 0
        printed = json.loads(capsys.readouterr().out)
        rows = {row["name"]: row["score"]["value"] for row in printed["small"]["policies"]}
        scores.append(rows["oracle"])
    assert scores[0] > scores[1]


def test_own_policies_play_and_those_that_peek_are_marked(folder, here, capsys):
    argv = ("--policy", "mine.py:Mine", "mine.py:Peeks")
    assert main([str(folder), *FEW, *argv, "--quiet"]) == 0
    said = capsys.readouterr().out
    assert lines_of(said, "Mine ")
    assert lines_of(said, "Peeks*")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--policy", "mine.py:Fails"), "policy Fails: plan fails: AttributeError"),
        (("--policy", "mine.py:Wrong"), "policy Wrong: plan of shape ()"),
        (("--policy", "mine.py:Idle"), "has no method plan"),
        (("--policy", "mine.py:NUMBER"), "name a class"),
        (("--policy", "mine.py:Nobody"), "unknown name 'Nobody'"),
        (("--policy", "mine.py:Mine", "mine.py:Mine"), "a policy Mine already"),
        (("--policies", "tabel"), "did you mean 'table'"),
        (("--prices", "2", "1"), "the lower one first"),
        (("--prices", "0", "1"), "above 0"),
        (("--episodes", "0"), "--episodes 0"),
    ],
)
def test_mistakes_are_one_line(argv, said, folder, here, capsys):
    assert main([str(folder), *FEW, *argv, "--quiet"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_no_code_runs_that_the_command_line_does_not_name(folder, here, capsys):
    (here / "mine.py").write_text("open('ran.txt', 'w').close()\n" + MINE)
    assert main([str(folder), *FEW, "--quiet"]) == 0
    assert not (here / "ran.txt").exists()
    assert main([str(folder), *FEW, "--policy", "mine.py:Mine", "--quiet"]) == 0
    assert (here / "ran.txt").exists()


EMPTY = ("seeds", "budget", "groups", "permuted", "accuracy", "test", "rollbacks")


def without_values(name: str, rows: slice):
    """A change of a table: some entries of a column are null."""

    def change(table: pa.Table) -> pa.Table:
        at, values = table.schema.get_field_index(name), table.column(name).to_pylist()
        values[rows] = [None] * len(values[rows])
        return table.set_column(at, table.field(at), pa.array(values, table.field(at).type))

    return change


def other_in_the_last_row(table: pa.Table) -> pa.Table:
    at, values = table.schema.get_field_index("budget"), table.column("budget").to_pylist()
    return table.set_column(at, table.field(at), pa.array([*values[:-1], 99.0]))


DAMAGES = {
    **{f"{name} empty": without_values(name, slice(None)) for name in EMPTY},
    "one budget empty": without_values("budget", slice(2, 3)),
    "one list empty": without_values("control", slice(1, 2)),
    "budget differs": other_in_the_last_row,
    "half of the rows": lambda table: table.slice(0, len(table) // 2),
    "a row missing": lambda table: table.slice(1),
    "no rows": lambda table: table.slice(0, 0),
    "rows twice": lambda table: pa.concat_tables([table, table]),
    "no column test": lambda table: table.drop_columns(["test"]),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_records_with_holes_are_one_line(damage, packed, folder, tmp_path, capsys):
    copy = tmp_path / "copy"
    if packed:
        pack_audit(folder, copy)
    else:
        shutil.copytree(folder, copy)
    path, *_ = sorted(copy.rglob("*.parquet"))
    table = pq.read_table(path)
    changed = DAMAGES[damage](table).replace_schema_metadata(table.schema.metadata)
    pq.write_table(changed, path)
    assert main([str(copy), *FEW, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    whole_contexts = packed and damage in ("half of the rows", "no rows")
    assert ("of 2 contexts have records" if whole_contexts else f"{path} is damaged") in line


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("digits_impared",), "valid: "),
        (("no/such/folder",), "no such folder"),
        (("digits_impaired", "digits_impaired"), "already"),
        (("--out", "x"), "--out without records"),
    ],
)
def test_wrong_records_are_one_line(argv, said, here, capsys):
    assert main(list(argv)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (here / "x").exists()
