"""Wrong settings: 1,000 config files and command lines, each accepted or refused in one line.

A seed makes a valid command or config file and mutates it (`settings_cases.py`). Whatever comes
out, the command ends with status 0 or 2, without a traceback, in 90 seconds, and a refusal is
one line of at most 400 characters. `--dry-run` and refusals write nothing, no config file runs
code, and what is surely a mistake (NaN, an unknown setting, text for a count) is refused.

Repeat one case, or try others:

    ESPER_FUZZ_SEEDS=17 python -m pytest -m slow tests/fuzz/test_settings.py -k one_line
    ESPER_FUZZ_SEEDS=5000:6000 python -m pytest -m slow tests/fuzz/test_settings.py -k one_line
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fuzz_support import in_words, require_none, seeds
from settings_cases import make_case
from settings_support import SETTINGS_FUZZ, fuzz_settings, prepared, trained_once

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def run_folder(commands, tmp_path_factory):
    return trained_once(commands, tmp_path_factory.mktemp("trained"))


def test_a_thousand_wrong_settings_are_accepted_or_refused_in_one_line(
    commands, run_folder, tmp_path
):
    chosen = seeds(0, 1000)
    broken, statuses = fuzz_settings(chosen, commands, run_folder, tmp_path)
    require_none(broken, SETTINGS_FUZZ, "one_line")
    if len(chosen) == 1000:  # most are mistakes, but not so bad that little is ever reached
        assert min(statuses[0], statuses[2]) >= 100, statuses


@pytest.mark.parametrize("seed", [3, 14, 15, 92, 65, 35])
def test_a_command_forked_ends_as_one_started_by_hand(seed, commands, run_folder, tmp_path):
    case = make_case(seed)
    forked = commands.run(case.argv, prepared(case, tmp_path / "forked", run_folder))
    argv = map(os.fsencode, (sys.executable, "-m", "esper.scripts.main", *case.argv))
    path = os.pathsep.join(sys.path)
    real = subprocess.run(
        list(argv),
        cwd=prepared(case, tmp_path / "real", run_folder),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        timeout=120,
    )
    said = real.stderr.decode(errors="replace")
    assert (real.returncode, said) == (forked.status, forked.errors), in_words(case.argv)
