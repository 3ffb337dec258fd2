"""`esper runs tag`: tags are listed, filtered by, and touch nothing that a run resumes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.karn import views
from esper.scripts import runs
from esper.scripts.train import main as train
from search_folder import search_folder
from view_support import policy_run
from web_support import comparison


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The default folder, with a search and a comparison."""
    monkeypatch.chdir(tmp_path)
    search_folder(tmp_path / "runs" / "grown")
    comparison(tmp_path / "runs" / "cmp")
    return tmp_path / "runs"


def test_a_run_is_tagged_by_name_listed_and_found_by_its_tags(root, capsys):
    assert runs.main(["tag", "grown", "good", "paper"]) == 0
    assert capsys.readouterr().out == "runs/grown: good, paper\n"
    assert runs.main(["tag", str(root / "cmp"), "good"]) == 0
    capsys.readouterr()
    assert runs.main([]) == 0
    assert "good, paper" in " ".join(capsys.readouterr().out.split())
    assert runs.main(["--tag", "good", "paper", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["name"], one["tags"]) == ("grown", ["good", "paper"])
    assert runs.main(["tag", "grown", "good", "--remove"]) == 0
    assert capsys.readouterr().out == "runs/grown: paper\n"
    assert runs.main(["--tag", "nowhere"]) == 0
    assert capsys.readouterr().out == "none of the 2 runs in runs is tagged nowhere\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["grown"], "name the tags"),
        (["grown", "two words"], "a tag is one word"),
        (["grown", "good", "--remove"], "has no tag good: it has no tags"),
        (["nothing", "good"], "no run nothing"),
        (["../runs", "good"], "holds no run"),
        ([], "RUN"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(root, capsys, argv, said):
    assert runs.main(["tag", *argv]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(root.rglob("tags.json"))


def test_a_damaged_tag_file_is_named_beside_the_run(root, capsys):
    (root / "grown" / "tags.json").write_text('{"tags": ["\x1b[2J"]}')
    found = views.run_summary(root / "grown")
    assert (found.state, found.score, found.tags) == (views.RunState.FINISHED, 0.85, ())
    assert runs.main([]) == 0
    shown = capsys.readouterr().out
    assert "tags.json" in shown
    assert "\x1b[2J" not in shown


def test_a_tagged_run_resumes(tmp_path, capsys):
    run = policy_run(tmp_path / "runs", rounds=1)
    assert runs.main(["tag", str(run), "good"]) == 0
    assert train(["random", "--resume", str(run), "--rounds", "2", "--quiet"]) == 0
    found = views.run_summary(run)
    assert (found.done, found.tags, found.problem) == (2, ("good",), "")
