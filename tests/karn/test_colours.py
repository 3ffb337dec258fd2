"""Colours are seen on light and dark ground and by every eye, and are one set in every medium."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import esper.karn.web
from esper.karn.stages import STAGE_COLOURS, stage_name
from esper.leyline.stages import SeedStage
from esper.plotting.html import STYLE

ROOT = Path(__file__).parents[2]
WEB = (Path(esper.karn.web.__file__).parent / "static" / "style.css").read_text()
GRAPHICS = 3.0
"""Least contrast of what is drawn, to its ground (WCAG 1.4.11)."""
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "none": np.eye(3).tolist(),
}  # fmt: skip
"""What eyes without one cone see, in linear RGB (Machado, Oliveira and Fernandes 2009)."""
LAB = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip


def linear(colour: str) -> np.ndarray:
    part = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(LAB[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, eyes: str) -> np.ndarray:
    xyz = LAB @ np.clip(np.array(BLIND[eyes]) @ linear(colour), 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def themes(style: str) -> dict[str, dict[str, str]]:
    """Custom properties of the light and the dark theme."""
    blocks = re.findall(r"\{([^{}]*--(?:panel|page):[^{}]*)\}", style)
    found = [dict(re.findall(r"--([\w-]+): *(#[0-9a-f]{6})", block)) for block in blocks]
    return {"light": found[0], "dark": found[1]}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("style", "ground", "outline"), [(WEB, "panel", "ink-soft"), (STYLE, "page", "muted")]
)
def test_every_stage_is_seen_by_its_colour_or_its_outline(theme, style, ground, outline):
    known = themes(style)[theme]
    assert contrast(known[outline], known[ground]) >= GRAPHICS
    if theme == "dark":
        for stage, colour in STAGE_COLOURS.items():
            assert contrast(colour, known[ground]) >= GRAPHICS, stage


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_series_are_seen_and_told_apart_by_every_eye(theme):
    known = themes(WEB)[theme]
    series = [known[f"series-{place}"] for place in range(8)]
    for colour in series:
        assert contrast(colour, known["panel"]) >= GRAPHICS, colour
    for eyes in BLIND:
        for one, other in combinations(range(8), 2):
            apart = float(np.linalg.norm(lab(series[one], eyes) - lab(series[other], eyes)))
            assert apart >= 9, (eyes, one, other, apart)


def test_the_stages_of_a_life_differ_for_every_eye():
    life = [SeedStage.GERMINATED, SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING,
            SeedStage.FOSSILIZED, SeedStage.PRUNED]  # fmt: skip
    for eyes in BLIND:
        for one, other in combinations(life, 2):
            apart = np.linalg.norm(lab(STAGE_COLOURS[one], eyes) - lab(STAGE_COLOURS[other], eyes))
            assert apart >= 9, (eyes, one, other, apart)


def test_the_picture_of_the_idea_has_the_stages_of_the_code():
    picture = (ROOT / "docs" / "img" / "idea.svg").read_text()
    boxes = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)"[^>]*fill="(#\w+)"', picture)
    texts = re.findall(r'<text x="(\d+)" y="(\d+)"[^>]*>([^<]*)</text>', picture)
    for stage in (SeedStage.DORMANT, SeedStage.GERMINATED, SeedStage.TRAINING, SeedStage.BLENDING,
                  SeedStage.HOLDING, SeedStage.FOSSILIZED, SeedStage.PRUNED):  # fmt: skip
        (at,) = [int(x) for x, _, word in texts if word == stage_name(stage)]
        fills = {fill for x, _, wide, fill in boxes if int(x) < at < int(x) + int(wide)}
        assert STAGE_COLOURS[stage] in fills, stage
