"""Killed runs: 50 times a training command is ended at a random moment, then resumed to the end.

A seed draws the signals (mostly SIGKILL, else SIGTERM, SIGINT or SIGHUP) and the moments: a random
time, or the middle of writing a checkpoint. One run after the other is killed until it happens to
finish, then the next begins. Each finished run has the weights, moments, history and judgement of
the run that nothing stopped, bit for bit; no checkpoint is ever half written; nothing is a
traceback. (`tests/simic/training/test_resume.py` does this with SIGKILL to the library alone, and
also checks that a round that was reported is kept.)

Repeat, or try another seed (moments depend on how fast the machine is):

    ESPER_FUZZ_SEEDS=3 python -m pytest -m slow tests/fuzz/test_kills.py -k bit_for_bit
"""

from __future__ import annotations

import pytest

from fuzz_support import require_none, seeds
from kill_support import KILL_FUZZ, finished, fuzz_kills


@pytest.mark.slow
def test_fifty_kills_and_every_run_is_the_same_bit_for_bit(commands, tmp_path):
    whole = finished(commands, tmp_path / "whole", rounds=8)
    broken = [
        line for seed in seeds(1, 1) for line in fuzz_kills(seed, 50, commands, whole, tmp_path)
    ]
    require_none(broken, KILL_FUZZ, "bit_for_bit")
