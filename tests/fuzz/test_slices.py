"""A little of each fuzz, in a minute; one server serves all."""

from __future__ import annotations

import pytest

from damage_support import DAMAGE_FUZZ, fuzz_damage
from fuzz_support import require_none
from kill_support import KILL_FUZZ, finished, fuzz_kills
from settings_cases import make_case
from settings_support import SETTINGS_FUZZ, fuzz_settings, trained_once

CHEAP_DAMAGE = [0, 2, 5, 9, 10]
"""Seeds: most of them are refused at once."""


def test_a_few_wrong_settings_are_accepted_or_refused_in_one_line(commands, tmp_path):
    cheap = [seed for seed in range(30) if not make_case(seed).with_run][:14]
    broken, statuses = fuzz_settings(cheap, commands, trained_once(commands, tmp_path), tmp_path)
    require_none(broken, SETTINGS_FUZZ, "one_line")
    assert statuses[0] >= 1


@pytest.mark.slow
def test_a_few_damaged_files_never_change_a_run_in_silence(commands, sound, tmp_path):
    broken, ends = fuzz_damage(CHEAP_DAMAGE, commands, sound, tmp_path)
    require_none(broken, DAMAGE_FUZZ, "never")
    assert ends["resume", 0] >= 1, "one at least was resumed from an older checkpoint"


@pytest.mark.slow
def test_a_kill_and_the_run_is_the_same_bit_for_bit(commands, tmp_path):
    whole = finished(commands, tmp_path / "whole", rounds=2)
    require_none(fuzz_kills(0, 1, commands, whole, tmp_path), KILL_FUZZ, "bit_for_bit")
