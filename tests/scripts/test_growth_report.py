"""What the report says follows from the numbers."""

import io

import numpy as np
from rich.console import Console

from esper.leyline.stages import SeedStage
from esper.scripts.growth_config import Arm, GrowDigits
from esper.scripts.growth_report import (
    difference_text,
    judgement_text,
    paired_differences,
    print_report,
)
from esper.scripts.growth_run import ArmResult, RunResult, SeedLives

STEPS = 4


def arm(test_E: list[float], parameters: int) -> ArmResult:
    curve_TE = np.zeros((STEPS, len(test_E)), dtype=np.float32)
    counts_E = np.full(len(test_E), parameters)
    return ArmResult(curve_TE, curve_TE, np.array(test_E, np.float32), counts_E, 8 * counts_E)


def result(seed: int, grown: list[float], alone: list[float]) -> RunResult:
    """Two members, two slots: member 1's second seed was pruned and its slot is dormant again."""
    stage_TES = np.zeros((STEPS, 2, 2), dtype=np.int8)
    final_ES = np.array([[5, 5], [5, 0]], dtype=np.int8)
    assert SeedStage(5) is SeedStage.FOSSILIZED
    pruned_ES = final_ES == SeedStage.DORMANT
    worth_ES = np.array([[0.2, 0.4], [0.1, -0.1]], dtype=np.float32)
    lives = SeedLives(
        ("r0c0", "r0c1"), stage_TES, stage_TES > 0, final_ES, pruned_ES, worth_ES, worth_ES * 0.1
    )
    return RunResult(seed, {Arm.GROWN: arm(grown, 1742), Arm.ALONE: arm(alone, 160)}, lives)


ONE = [result(0, [0.9, 0.7], [0.3, 0.3])]
TWO = [*ONE, result(1, [0.8, 0.8], [0.2, 0.2])]


def test_one_run_is_paired_over_members():
    assert np.allclose(paired_differences(ONE, Arm.ALONE), [0.6, 0.4])
    # t(0.975, 1) = 12.7062; standard error = 14.1421 / sqrt(2) = 10 points
    expected = "+50.0 points on test (95 % interval -77.1 to +177.1, n = 2 members)"
    assert difference_text(ONE, Arm.ALONE) == expected


def test_several_runs_are_paired_over_run_seeds():
    assert np.allclose(paired_differences(TWO, Arm.ALONE), [0.5, 0.6])
    assert difference_text(TWO, Arm.ALONE).endswith("n = 2 run seeds)")


def test_judgement_counts_seeds_and_averages_their_contribution():
    text = judgement_text(ONE)
    assert "3 kept, 1 pruned" in text
    assert "mean +15.0 points, -10.0 to +40.0" in text


def test_table_shows_what_became_of_each_slot():
    out = io.StringIO()
    print_report(Console(file=out, width=80), GrowDigits(members=2), ONE)
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["0", "permanent", "permanent", "1,742", "13,936", "90.0", "30.0", "+60.0"] in rows
    assert ["1", "permanent", "pruned", "1,742", "13,936", "70.0", "30.0", "+40.0"] in rows
