"""The pictures and tables of the duel are those of the measurements that lie beside them."""

from __future__ import annotations

import math
import re

import pytest

import duel_picture
from duel_problems import PROBLEMS
from page_support import ROOT

NUMBER = r"[-+]?\d+\.?\d*"


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(NUMBER, text)]


def test_the_best_so_far_holds_until_the_next_one():
    row = {"incumbents": [{"at": 2.0, "test": 0.5}, {"at": 4.0, "test": 0.7}]}
    scores = [duel_picture.score_at(row, at) for at in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert scores == [-math.inf, 0.5, 0.5, 0.7, 0.7]
    corners = duel_picture.steps((1.0, 2.0, 3.0, 4.0, 5.0), scores)
    assert corners == [(2.0, 0.5), (4.0, 0.5), (4.0, 0.7), (5.0, 0.7)]


@pytest.mark.parametrize("device", duel_picture.MACHINES)
def test_the_pictures_are_drawn_from_the_data(device):
    drawn = duel_picture.picture(duel_picture.read(), device)
    shown = (ROOT / "docs" / "img" / f"duel_{device}.svg").read_text()
    assert re.sub(NUMBER, "", drawn) == re.sub(NUMBER, "", shown)
    assert numbers(drawn) == pytest.approx(numbers(shown), abs=0.11)
    assert drawn.count("n = ") == len(PROBLEMS)


def test_the_tables_of_the_page_are_computed_from_the_data():
    page = duel_picture.PAGE.read_text()
    anew = duel_picture.with_tables(page, duel_picture.read())
    assert page.count("<!-- duel ") == len(duel_picture.MACHINES)
    assert re.sub(NUMBER, "", anew) == re.sub(NUMBER, "", page)
    assert numbers(anew) == pytest.approx(numbers(page), abs=1.1e-4)
