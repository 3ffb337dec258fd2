"""docs/runs.md: its example runs, and it lists the settings that may change."""

import dataclasses
import re
from pathlib import Path

from esper.growing.runs import How, Recipe, Row, Table
from esper.karn.views import RunState
from esper.simic.training.runs.resume import MAY_CHANGE

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "runs.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert [record.round_index for record in names["history"]] == [0, 1, 2]
    line = capsys.readouterr().out
    assert re.match(r"first finished 3 -?0\.\d+\n$", line)


def test_all_that_may_change_is_listed():
    listed = set(
        re.findall(r"`([a-z_.]+)`", TEXT[TEXT.index("| how long") : TEXT.index("Any other change")])
    )
    assert listed == set(MAY_CHANGE)


def test_every_field_of_a_run_of_a_search_is_explained():
    text = (DOCS / "records.md").read_text()
    names = [one.name for record in (Row, Recipe, How, Table) for one in dataclasses.fields(record)]
    assert not [name for name in names if f"`{name}`" not in text]


def test_every_state_of_a_run_is_explained():
    assert [state for state in RunState if f"\n| {state.value} |" not in TEXT] == []
