"""Damaged run folders: 120 times one file is damaged, then the run is resumed, judged or listed.

A seed picks the file, the damage (`damage_cases.py`) and the command. A resume is refused in one
line, or ends with the very bits of the run that was not damaged (from an older checkpoint where
the newest is broken), or names what is different. An evaluation gives the figures of the sound run,
or says from where others come. No checkpoint that was sound is lost.

Repeat one case, or try others:

    ESPER_FUZZ_SEEDS=17 python -m pytest -m slow tests/fuzz/test_damage.py -k never
    ESPER_FUZZ_SEEDS=500:600 python -m pytest -m slow tests/fuzz/test_damage.py -k never
"""

from __future__ import annotations

import pytest

from damage_support import DAMAGE_FUZZ, fuzz_damage
from fuzz_support import require_none, seeds


@pytest.mark.slow
def test_120_damaged_files_never_change_a_run_in_silence(commands, sound, tmp_path):
    chosen = seeds(0, 120)
    broken, ends = fuzz_damage(chosen, commands, sound, tmp_path)
    require_none(broken, DAMAGE_FUZZ, "never")
    if len(chosen) == 120:  # some damage does not matter, some does
        assert min(ends["resume", 0], ends["resume", 2]) >= 10, ends
