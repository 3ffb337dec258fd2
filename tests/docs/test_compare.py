"""docs/compare.md: its code runs, its numbers match the code."""

from __future__ import annotations

import re
from pathlib import Path

from esper.leyline import statistics
from esper.leyline.seeds import EVALUATION_SEEDS
from esper.tamiyo.grammar import WORDS

TEXT = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()


def test_the_code_runs_as_written(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "compare.md", "exec"), {})
    difference, improvement = map(float, capsys.readouterr().out.splitlines()[0].split())
    assert difference > 0
    assert improvement == 0.0, "more parameters are not better"


def test_every_word_is_in_its_table():
    for word in (*WORDS, "sampled:FOLDER"):
        assert f"`{word}" in TEXT


def test_its_numbers_are_those_of_the_code():
    assert f"{EVALUATION_SEEDS[0]} to {EVALUATION_SEEDS[-1]}" in TEXT
    assert f"{statistics.RESAMPLES:,} resamples" in TEXT
    assert statistics.TRIMMED == 1 / 4
