"""Killed, cut, flipped or out of space: the old save or the new one is there, and whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from esper.kasmina import MorphogeneticModel, Population
from esper.leyline import EsperError
from esper.storage import saves
from esper.storage.sealed_json import checksum_of
from saving_cases import bits, found, in_fresh_process, names_in, small
from support import tiny_host

KILLS = 8
WHOLE = ["manifest.json", "tensors"]


def refused(folder: Path, load=Population.load) -> str:
    """The one line with which a folder is refused."""
    with pytest.raises(EsperError) as error:
        load(folder, tiny_host)
    line = str(error.value)
    assert "\n" not in line
    assert str(folder) in line
    return line


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A save of a population, not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "save"
    small(1).save(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """A save of a population to spoil."""
    return Path(shutil.copytree(made, tmp_path / "save"))


def tensor_file(folder: Path) -> Path:
    (path,) = folder.glob("tensors-*.safetensors")
    return path


def rewrite(folder: Path, **changes: object) -> None:
    """A manifest with other entries and a right checksum."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    manifest["checksum"] = checksum_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


# ---- what is refused --------------------------------------------------------------------


def test_a_missing_folder_and_a_file_in_its_place(tmp_path):
    assert "does not exist: give the folder of a save" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(tmp_path / "file")


def test_a_name_that_is_too_long_is_no_folder(tmp_path):
    assert "cannot be read (File name too long)" in refused(tmp_path / ("x" * 300))


def test_missing_files_are_named(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "manifest.json is missing" in refused(tmp_path / "empty")
    tensor_file(folder).unlink()
    assert ".safetensors is missing" in refused(folder)


@pytest.mark.parametrize(
    "text",
    ["", "{", "\x00" * 100, "[" * 100_000, "{'format': 1}", '{"a": NaN}', "9" * 5000],
)
def test_a_manifest_that_is_not_json(folder, text):
    (folder / "manifest.json").write_text(text)
    assert "manifest.json is damaged, not JSON" in refused(folder)


def test_a_manifest_that_is_not_even_text(folder):
    (folder / "manifest.json").write_bytes(b"\xff\xfe{}")
    assert "manifest.json is damaged, not JSON" in refused(folder)


@pytest.mark.parametrize("foreign", ["{}", "[]", "3", "null", '{"format": "other"}'])
def test_foreign_json(folder, foreign):
    (folder / "manifest.json").write_text(foreign)
    assert "is not a manifest of an Esper save" in refused(folder)


def test_a_changed_setting_breaks_the_checksum(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"host_lr": 0.05', '"host_lr": 0.06'))
    assert "its checksum is wrong" in refused(folder)


def test_spaces_do_not_matter(folder):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert found(folder, {"same": bits(small(1))}) == "same"


@pytest.mark.parametrize(
    "schema", [saves.SCHEMA + 1, saves.SCHEMA - 1, 0, True, float(saves.SCHEMA), "1", None]
)
def test_another_schema_is_refused(folder, schema):
    rewrite(folder, schema=schema)
    assert f"has schema {schema!r}, this Esper reads schema {saves.SCHEMA}" in refused(folder)


def test_a_truncated_tensor_file(folder):
    path = tensor_file(folder)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{size - 100} bytes, expected {size}" in refused(folder)


def test_a_foreign_tensor_file(folder):
    save_file({"weight": torch.zeros(3)}, tensor_file(folder))
    assert "is damaged" in refused(folder)


def test_one_flipped_bit_in_the_tensors(folder):
    path = tensor_file(folder)
    blob = bytearray(path.read_bytes())
    blob[-5] ^= 1
    path.write_bytes(blob)
    assert "its checksum is wrong" in refused(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "tensors.safetensors", ""])
def test_the_tensor_file_lies_in_the_folder(folder, name):
    manifest = json.loads((folder / "manifest.json").read_text())
    rewrite(folder, tensors=manifest["tensors"] | {"name": name})
    assert "not the name of a tensor file" in refused(folder)


def test_a_member_is_no_population_and_the_other_way_round(folder, tmp_path):
    assert "holds a population, not a member: load it with Population.load" in refused(
        folder, MorphogeneticModel.load
    )
    small(1).member(0).save(tmp_path / "member")
    assert "holds a member, not a population: load it with MorphogeneticModel.load" in refused(
        tmp_path / "member"
    )
    rewrite(folder, kind="populace")
    assert "did you mean 'population'" in refused(folder)


def test_content_of_another_make_is_named(folder):
    content = json.loads((folder / "manifest.json").read_text())["content"]
    rewrite(folder, content=content | {"colour": "red"})
    assert "unknown field 'colour'" in refused(folder)
    rewrite(folder, content={key: value for key, value in content.items() if key != "seed"})
    assert "field 'seed' is missing" in refused(folder)
    rewrite(folder, content=content | {"banks": []})
    assert "tensor 'bank/r0c0/conv_light/" in refused(folder)


# ---- damage at random -------------------------------------------------------------------


def damage(path: Path, draw: np.random.Generator) -> str:
    """Flip a byte, change a digit, cut the file, add to it or blank a part, somewhere."""
    blob = bytearray(path.read_bytes())
    at = int(draw.integers(len(blob)))
    kind = draw.choice(["flip", "digit", "cut", "grow", "blank"])
    digits = [i for i, byte in enumerate(blob) if chr(byte).isdecimal() and byte < 128]
    if kind == "flip":
        blob[at] ^= int(draw.integers(1, 256))
    elif kind == "digit":
        at = int(draw.choice(digits))
        blob[at] = ord("0") + (blob[at] - ord("0") + int(draw.integers(1, 10))) % 10
    elif kind == "cut":
        del blob[at:]
    elif kind == "grow":
        blob[at:at] = draw.bytes(int(draw.integers(1, 9)))
    else:
        blob[at : at + 512] = bytes(len(blob[at : at + 512]))
    path.write_bytes(blob)
    return f"{kind} at {at} of {path.name}"


@pytest.mark.parametrize("trials", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damage_is_refused_in_one_line_or_loads_identically(trials, made, tmp_path):
    """Random flips, cuts, insertions and blanks over both files."""
    expected, draw = bits(small(1)), np.random.default_rng(0)
    lines = []
    for trial in range(trials):
        spoilt = Path(shutil.copytree(made, tmp_path / "spoilt"))
        what = damage(spoilt / "manifest.json" if trial % 2 else tensor_file(spoilt), draw)
        try:
            assert bits(Population.load(spoilt, tiny_host)) == expected, what
        except EsperError as error:
            lines.append(str(error))
        shutil.rmtree(spoilt)
    assert not any("\n" in line for line in lines)
    assert len(lines) > 0.9 * trials, "only the spaces of the manifest do not matter"


# ---- interrupted ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted():
    """What a fresh process found after every kind of interruption, and the folder it was in."""
    with tempfile.TemporaryDirectory() as top:  # pytest's own folders are closed to other users
        os.chmod(top, 0o755)
        yield Path(top), in_fresh_process(f"interrupted_saves({top!r}, {KILLS})", threads=1)


def test_killed_at_each_call_or_any_moment_the_old_or_the_new_save_is_whole(interrupted):
    seen = interrupted[1]["at each call"]
    for case, before in (("over", "old"), ("first", "nothing")):
        states, turn = seen[case], seen[case].index("new")
        assert states == [before] * turn + ["new"] * (len(states) - turn), "one moment of change"
        assert turn >= 8, "before it both files are written and synced, the tensors renamed"
        assert len(states) > turn, "after it the folder is synced and swept"
    seen = interrupted[1]["at random"]
    assert seen["old"] + seen["new"] == KILLS


@pytest.mark.slow
def test_killed_at_many_random_moments_some_in_the_middle_of_a_save(tmp_path):
    seen = in_fresh_process(f"killed_at_random({str(tmp_path / 'save')!r}, 200)", 600, threads=1)
    assert seen["old"] + seen["new"] == 200
    assert seen["midway"] > 0, f"some kills fell into the middle of a save: {seen}"


def test_contents_reach_the_disk_before_their_names(folder, monkeypatch):
    """fsync, rename, fsync of the folder: tensors, then the manifest, then the old file goes."""
    calls: list[str] = []
    sync, replace, unlink = os.fsync, os.replace, os.unlink

    def logged_sync(descriptor: int) -> None:
        calls.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).suffix or 'folder'}")
        sync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        calls.append(f"name {target.suffix}")
        replace(source, target)

    def logged_unlink(path: Path) -> None:
        calls.append(f"remove {path.suffix}")
        unlink(path)

    monkeypatch.setattr(os, "fsync", logged_sync)
    monkeypatch.setattr(os, "replace", logged_replace)
    monkeypatch.setattr(os, "unlink", logged_unlink)
    small(2).save(folder)
    tensors = ["sync .tmp", "name .safetensors", "sync folder"]
    manifest = ["sync .tmp", "name .json", "sync folder"]
    assert calls == [*tensors, *manifest, "remove .safetensors"]


# ---- no space, no permission --------------------------------------------------------------


def test_a_full_disk_or_a_read_only_folder_is_one_line_and_the_old_save_stays(interrupted):
    top, seen = interrupted
    lines = seen["full_disk"]
    assert len(lines) == 2
    for line in lines:
        assert f"cannot save to {top / 'full_disk'}" in line
        assert "File too large; free some space or choose another folder" in line
        assert "\n" not in line
    lines = seen["read_only"]
    assert len(lines) == 2
    for line in lines:
        assert "Permission denied; check its permissions or choose another folder" in line
        assert "\n" not in line


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("turn", [0, 3])
def test_a_fault_at_any_call_leaves_a_whole_save_and_no_rubbish(folder, call, turn, monkeypatch):
    new, known = small(2), {"old": bits(small(1)), "new": bits(small(2))}
    real, count = getattr(os, call), iter(range(100))

    def faulty(*args: object) -> object:
        if next(count) == turn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(os, call, faulty)
    if call == "replace" and turn >= 2:
        new.save(folder)  # there are two renames
    else:
        with pytest.raises(EsperError, match="No space left on device; free some space"):
            new.save(folder)
    monkeypatch.undo()
    last = (call, turn) == ("fsync", 3) or (call, turn) in [("replace", 2), ("replace", 3)]
    assert found(folder, known) == ("new" if last else "old")
    assert names_in(folder) == WHOLE


def test_saving_the_same_again_keeps_the_save_through_a_fault(folder, monkeypatch):
    """Equal content has an equal file name: clearing up must not take the old save's file."""

    def faulty(source: Path, target: Path) -> None:
        if target.name == "manifest.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.rename(source, target)

    monkeypatch.setattr(os, "replace", faulty)
    with pytest.raises(EsperError, match="Input/output error"):
        small(1).save(folder)
    assert found(folder, {"old": bits(small(1))}) == "old"


def test_saving_clears_what_was_left_and_nothing_else(folder):
    left = ["tensors-0123456789abcdef.safetensors", ".manifest.json.ab_c123.tmp"]
    left.append(".tensors-0123456789abcdef.safetensors.x1y2z3.tmp")
    kept = ["notes.txt", "tensors-mine.safetensors", "model.safetensors", ".other.a1.tmp"]
    for name in (*left, *kept):
        (folder / name).write_text("x")
    small(2).save(folder)
    present = set(os.listdir(folder))
    assert not present & set(left)
    assert present >= set(kept)
    assert len(present) == len(kept) + 2


def test_saving_does_not_replace_what_is_not_ours(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "my web app"}')
    with pytest.raises(EsperError, match="does not belong to Esper: choose another"):
        small(1).save(tmp_path)
    assert os.listdir(tmp_path) == ["manifest.json"]
    assert "web app" in (tmp_path / "manifest.json").read_text()


def test_saving_replaces_a_damaged_save(folder):
    (folder / "manifest.json").write_text("{")
    small(2).save(folder)
    assert found(folder, {"new": bits(small(2))}) == "new"
    assert names_in(folder) == WHOLE


def test_saving_onto_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(EsperError, match=r"cannot save to .*file: "):
        small(1).save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x"
