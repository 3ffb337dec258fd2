"""The picture is a real one, and a failed write takes nothing away."""

import os
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from esper.karn.growth_picture import MAX_MEMBERS, Curve, LifeLines, draw_growth
from esper.karn.stages import STAGE_COLOURS, STAGE_NOTES
from esper.leyline.errors import EsperError
from esper.leyline.stages import SeedStage
from esper.storage.atomic import write_atomic

STEPS, SLOTS = 12, ("r0c0", "r0c1", "r0c2")


def curve(label: str, count: int, level: float) -> Curve:
    noise_NT = np.random.default_rng(0).normal(0, 0.02, (count, STEPS))
    return Curve(label, (level + noise_NT).astype(np.float32))


def lives(members: int, stage: SeedStage = SeedStage.TRAINING) -> LifeLines:
    stage_TES = np.full((STEPS, members, len(SLOTS)), SeedStage.DORMANT, dtype=np.int8)
    stage_TES[4:] = stage
    return LifeLines(SLOTS, stage_TES, np.zeros(stage_TES.shape, dtype=np.bool_))


def draw(path: Path, members: int = 3, stage: SeedStage = SeedStage.TRAINING) -> None:
    curves = [curve("grown", members, 0.8), curve("left alone", members, 0.2)]
    draw_growth(path, curves, lives(members, stage), "Title")


def share_of(path: Path, colour: str) -> float:
    """Share of the pixels that have exactly this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    pixels = np.rint(255 * imread(path)[..., :3]).astype(int)
    return float((pixels == wanted).all(axis=-1).mean())


def test_writes_a_picture_and_nothing_else(tmp_path: Path):
    path = tmp_path / "growth.png"
    draw(path, 1)
    pixels = imread(path)
    assert pixels.shape[0] > 400
    assert pixels.shape[1] > 800
    assert pixels[..., :3].std() > 0.1
    assert os.listdir(tmp_path) == ["growth.png"]


@pytest.mark.parametrize("stage", [SeedStage.TRAINING, SeedStage.FOSSILIZED])
def test_life_lines_show_the_stage(tmp_path: Path, stage: SeedStage):
    draw(tmp_path / "growth.png", stage=stage)
    for other in (SeedStage.TRAINING, SeedStage.FOSSILIZED):
        shown = share_of(tmp_path / "growth.png", STAGE_COLOURS[other]) > 0.02
        assert shown == (other is stage)


def test_every_stage_has_its_own_colour():
    assert set(STAGE_COLOURS) == set(SeedStage)
    assert set(STAGE_NOTES) <= set(SeedStage)
    assert len(set(STAGE_COLOURS.values())) == len(SeedStage)


def test_large_populations_do_not_make_endless_pictures(tmp_path: Path):
    draw(tmp_path / "some.png", MAX_MEMBERS)
    draw(tmp_path / "many.png", 3 * MAX_MEMBERS)
    assert imread(tmp_path / "many.png").shape == imread(tmp_path / "some.png").shape


def test_failed_write_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "growth.png"
    draw(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        draw(path, stage=SeedStage.FOSSILIZED)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["growth.png"]


def test_written_file_has_the_usual_permissions(tmp_path: Path):
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    write_atomic(tmp_path / "whole", b"content")
    assert (tmp_path / "whole").stat().st_mode == plain.stat().st_mode


def test_curves_and_lives_must_cover_the_same_steps(tmp_path: Path):
    short = Curve("grown", np.zeros((3, STEPS - 1), dtype=np.float32))
    with pytest.raises(EsperError, match=r"'grown'.*12"):
        draw_growth(tmp_path / "growth.png", [short], lives(3), "Title")
    assert os.listdir(tmp_path) == []
