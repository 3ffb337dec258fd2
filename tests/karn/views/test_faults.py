"""One file of a run folder is damaged: the web page, the terminal and the report name it, and show
the rest.

Every file of every kind of run, each in every way; nothing is drawn on a terminal, which takes a
second for each. Audits, which the lab writes: lab/tests/views/test_audit_views.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from esper.karn.views import read_contenders
from search_folder import search_folder
from view_faults import MEDIA, files, unnamed


@pytest.fixture
def kinds(tmp_path, ppo, policy, compared) -> dict[str, Path]:
    return {"learner": ppo, "policy": policy, "compare": compared,
            "grow": search_folder(tmp_path / "searched")}  # fmt: skip


@pytest.mark.parametrize("kind", ["learner", "policy", "compare", "grow"])
@pytest.mark.parametrize("look", MEDIA)
def test_a_damaged_file_is_named_and_the_rest_is_shown(kinds, kind, look, tmp_path):
    assert unnamed(kinds[kind], look, tmp_path / "damaged") == []


def test_a_damaged_policy_leaves_the_others_and_says_its_name(compared, tmp_path):
    run = shutil.copytree(compared, tmp_path / "run")
    path = sorted((run / "policies").glob("*.json"))[0]
    before = read_contenders(run)
    path.write_text("{")
    *others, last = read_contenders(run)
    assert last.label == f"{path.name}: cannot be read"
    assert len(others) == len(before) - 1
    assert {one.label for one in others} < {one.label for one in before}


def test_every_kind_of_run_has_files_that_are_damaged(kinds):
    assert all(len(files(run)) >= 2 for run in kinds.values())
    assert read_contenders(kinds["compare"])
