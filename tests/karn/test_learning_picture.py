"""The picture of a run of the learner: a real one, of shares that add up."""

import numpy as np
import pytest
from matplotlib.image import imread

from esper.karn.learning_picture import LearningCurves, Level, action_shares, draw_learning
from esper.leyline import ActionHead, LifecycleOp, SeedStage
from support import refused

UPDATES, MEMBERS = 6, 4


def curves(updates: int = UPDATES, **changes) -> LearningCurves:
    rng = np.random.default_rng(0)
    chosen = np.zeros((updates, len(LifecycleOp), len(SeedStage)), dtype=np.int64)
    chosen[:, LifecycleOp.GERMINATE, SeedStage.DORMANT] = 20
    chosen[:, LifecycleOp.PRUNE, SeedStage.HOLDING] = 10
    chosen[:1, LifecycleOp.PRUNE, SeedStage.TRAINING] = 1
    facts = {
        "score_UE": rng.normal(0.2, 0.05, (updates, MEMBERS)),
        "whole_UE": np.arange(updates * MEMBERS).reshape(updates, MEMBERS) % 7 > 0,
        "waited_U": np.full(updates, 70),
        "chosen_UOZ": chosen,
        "head_entropy_UA": np.full((updates, len(ActionHead)), 0.5),
        "explained_variance_U": np.linspace(-3, 0.9, updates),
        "approx_kl_U": np.full(updates, 0.02),
    }
    return LearningCurves(**(facts | changes))


@pytest.mark.parametrize("updates", [1, UPDATES])
def test_a_picture_is_written(tmp_path, updates):
    unknown = np.full((updates, len(ActionHead)), np.nan)
    for name, shown in (("a", curves(updates)), ("b", curves(updates, head_entropy_UA=unknown))):
        path = tmp_path / f"{name}.png"
        draw_learning(path, shown, [Level("wait", 0.16), Level("random", 0.1)], "Title")
        picture = imread(path)
        assert picture.shape[2] >= 3
        assert (picture[..., :3].mean(axis=-1) < 0.9).mean() > 0.001


def test_shares_of_actions_add_up_and_small_ones_are_drawn_together():
    shares = action_shares(curves())
    np.testing.assert_allclose(sum(shares.values()), 1.0)
    assert shares["WAIT"][1] == pytest.approx(0.7)
    assert len(shares) == 4
    assert "other" in shares
    assert shares["other"][0] == pytest.approx(1 / 101)
    assert shares["other"][1] == 0


def test_what_cannot_be_drawn_is_refused(tmp_path):
    assert "without updates" in refused(lambda: curves(0))
    assert "A is 3" in refused(lambda: curves(head_entropy_UA=np.zeros((UPDATES, 3))))
    levels = [Level(str(i), 0.1) for i in range(9)]
    assert "9 levels" in refused(lambda: draw_learning(tmp_path / "x.png", curves(), levels, ""))
