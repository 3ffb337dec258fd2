"""Checksums of the JSON files of a run folder: damage is never taken for settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.leyline.errors import EsperError
from esper.scripts import train
from esper.scripts.evaluate import training_config
from esper.simic.training.config_files import resolve
from esper.simic.training.runs.folder import (
    Retention,
    RunFolder,
    SessionSettings,
    read_config,
    read_info,
    read_retention,
    read_session_settings,
)
from resume_support import resumed_run, same_runs
from run_driver import small_run
from support import refused

READERS = {
    "config.json": read_config,
    "run.json": read_info,
    "retention.json": read_retention,
    "session.json": read_session_settings,
}


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run with all its files and no checkpoint yet."""
    around = SessionSettings(evaluation_envs=4, data_dir="/sets", telemetry="debug")
    with RunFolder.create(tmp_path, "x", small_run(2), around) as folder:
        folder.save_retention(Retention(every=2, keep=7))
        return folder.path


def outcome_of(read: Callable[[], object]) -> object:
    """What is read, or the line that refuses it."""
    try:
        return read()
    except EsperError as error:
        return str(error)


def outcomes_of_damage(path: Path, damaged: list[bytes]) -> tuple[int, int]:
    """How many of these contents are refused in one line, and how many say what the file said."""
    reader, original = READERS[path.name], path.read_bytes()
    wanted = reader(path.parent)
    refusals = harmless = 0
    for content in damaged:
        path.write_bytes(content)
        found = outcome_of(lambda: reader(path.parent))
        if isinstance(found, str):
            assert "\n" not in found
            assert str(path) in found
            refusals += 1
        else:
            assert found == wanted, "damage was taken for settings"
            harmless += 1
    path.write_bytes(original)
    return refusals, harmless


@pytest.mark.parametrize("name", READERS)
def test_a_flipped_bit_is_refused_or_changes_nothing(begun, name):
    """Every third byte, with a bit of its own; what changes nothing is space between entries."""
    content = (begun / name).read_bytes()
    places = range(0, len(content), 3)
    flipped = [
        content[:at] + bytes([content[at] ^ 1 << at % 7]) + content[at + 1 :] for at in places
    ]
    refusals, harmless = outcomes_of_damage(begun / name, flipped)
    assert refusals > 2 * harmless
    assert refusals + harmless == len(places)


@pytest.mark.parametrize("name", READERS)
def test_a_lost_line_is_refused_or_changes_nothing(begun, name):
    lines = (begun / name).read_bytes().splitlines(keepends=True)
    shorter = [b"".join(lines[:at] + lines[at + 1 :]) for at in range(len(lines))]
    refusals, harmless = outcomes_of_damage(begun / name, shorter)
    assert (refusals, harmless) == (len(lines), 0)


def flip_epochs(run: Path) -> None:
    """`"epochs": 1` becomes `"epochs": 3`: one bit."""
    path = run / "config.json"
    text = path.read_text()
    assert text.count('"epochs": 1,') == 1
    path.write_text(text.replace('"epochs": 1,', '"epochs": 3,'))


def test_damaged_settings_end_the_command_in_one_line_that_says_what_to_do(copied, capsys):
    flip_epochs(copied)
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    assert train.main(["ppo", "--resume", str(copied), "--rounds", "4"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for words in (str(copied / "config.json"), "does not match its checksum", "delete it to take"):
        assert words in said
    after = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    assert after == before, "nothing was trained or written"


def test_damaged_settings_are_found_before_there_is_a_checkpoint(begun):
    flip_epochs(begun)
    assert "does not match its checksum" in refused(lambda: resumed_run(begun))


def test_without_its_settings_a_run_resumes_as_its_newest_checkpoint_says(copied, four):
    flip_epochs(copied)
    (copied / "config.json").unlink()
    resumed = resumed_run(copied, small_run(4))
    assert same_runs(copied, four)
    (note,) = resumed.notes
    assert "config.json is missing" in note
    assert str(copied / "checkpoints" / "round-000002") in note
    assert read_config(copied) == small_run(4)


def unseal(path: Path, **changes: Any) -> None:
    """The file as an older Esper wrote it, or as somebody who edited it left it."""
    document = json.loads(path.read_text())
    del document["checksum"]
    path.write_text(json.dumps({**document, **changes}, indent=1))


def test_a_run_without_checksums_resumes_bit_for_bit_and_is_sealed_from_then_on(copied, four):
    unseal(copied / "config.json")
    unseal(copied / "run.json")
    resumed = resumed_run(copied, small_run(4))
    assert (resumed.changed, resumed.notes) == (("rounds: 2 -> 4",), ())
    assert same_runs(copied, four)
    for name in ("config.json", "run.json"):
        assert "checksum" in json.loads((copied / name).read_text())


def test_settings_edited_by_hand_are_told_and_recorded_beside_those_of_the_checkpoint(copied):
    flip_epochs(copied)
    unseal(copied / "config.json", updates_per_rollout=2)
    resumed = resumed_run(copied, run=False)
    assert resumed.changed == ("ppo.epochs: 1 -> 3", "updates_per_rollout: 1 -> 2")
    assert read_info(copied).sessions[-1].changed == resumed.changed


def test_edited_settings_that_make_another_run_are_refused(copied):
    unseal(copied / "config.json", seed=1)
    assert "seed is 0 there and 1 here" in refused(lambda: resumed_run(copied))


def test_what_flags_change_is_told_until_a_checkpoint_was_trained_with_it(copied):
    """The session that changed it may have been killed before it saved anything."""
    faster = replace(small_run(2), ppo=replace(small_run(2).ppo, epochs=3))
    assert resumed_run(copied, faster, run=False).changed == ("ppo.epochs: 1 -> 3",)
    assert resumed_run(copied, run=False).changed == ("ppo.epochs: 1 -> 3",)
    assert resumed_run(copied, small_run(2), run=False).changed == ("ppo.epochs: 3 -> 1",)
    assert resumed_run(copied, run=False).changed == ()


def test_a_controller_is_judged_under_the_settings_of_its_checkpoint(copied):
    flip_epochs(copied)
    assert training_config(copied) == small_run(2)
    unseal(copied / "config.json")
    assert training_config(copied) == small_run(2)


def test_settings_of_a_run_start_another_unless_they_were_edited_under_their_checksum(copied):
    path = copied / "config.json"
    assert resolve("plain", path) == small_run(2)
    flip_epochs(copied)
    line = refused(lambda: resolve("plain", path))
    assert 'if you edited it, remove its "checksum" line' in line
    unseal(path)
    assert resolve("plain", path).ppo.epochs == 3
