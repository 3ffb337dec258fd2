"""Packed records: smaller, the same to the bit, and shipped with the package."""

from __future__ import annotations

import subprocess
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from audit_rows import made_up_info, made_up_rows
from audit_support import SmallAudit
from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command
from esper_lab import bench
from esper_lab.audit import packed
from esper_lab.audit.folder import AuditFolder
from esper_lab.audit.packed import SHIPPED, find_records, pack_audit, size_bytes, unpack_audit
from esper_lab.audit.records import INFO, PACKED, identity_of, read_audit, read_info
from pack_records import PackRecords, pack
from support import refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A real audit with topologies that were grown, too."""
    path = tmp_path_factory.mktemp("audit") / "small"
    SmallAudit().run(path)
    return path


@pytest.fixture
def made(folder, tmp_path) -> Path:
    return pack_audit(folder, tmp_path / "packed")


def require_equal(one, two) -> None:
    for part in ("records", "contexts"):
        for field in fields(getattr(one, part)):
            first, second = (getattr(getattr(audit, part), field.name) for audit in (one, two))
            assert first.dtype == second.dtype
            np.testing.assert_array_equal(first, second)


def test_packed_records_are_the_same_to_the_bit_and_smaller(folder, made):
    before, after = read_audit(folder), read_audit(made)
    require_equal(before, after)
    assert after.info == replace(before.info, grown=())
    assert identity_of(after.info) == identity_of(before.info)
    assert size_bytes(made) < size_bytes(folder) / 2
    assert sorted(path.name for path in made.iterdir()) == [INFO, PACKED]


def test_equal_records_give_equal_bytes(folder, made, tmp_path):
    for again in (pack_audit(folder, tmp_path / "again"), pack_audit(made, tmp_path / "twice")):
        for name in (INFO, PACKED):
            assert (again / name).read_bytes() == (made / name).read_bytes()


def test_nothing_of_the_machine_is_packed(folder, made):
    for path in made.iterdir():
        assert str(folder.parent).encode() not in path.read_bytes()


def test_missing_contexts_stay_missing(tmp_path):
    with AuditFolder(tmp_path / "audit", made_up_info()) as opened:
        for context in (0, 2):
            opened.write(made_up_rows(context))
    made = pack_audit(tmp_path / "audit", tmp_path / "packed")
    require_equal(read_audit(tmp_path / "audit"), read_audit(made))
    assert np.isnan(read_audit(made).contexts.budget_C).tolist() == [False, True, False]


def test_unpacked_records_are_an_audit_folder_that_can_be_continued(folder, made, tmp_path):
    again = unpack_audit(made, tmp_path / "again")
    require_equal(read_audit(folder), read_audit(again))
    assert sorted(path.name for path in (again / "records").iterdir()) == [
        f"context-{context:04d}.parquet" for context in range(read_info(made).contexts)
    ]
    with AuditFolder(again, read_info(made)) as opened:
        assert opened.has(0)


def test_a_folder_that_exists_is_not_overwritten(folder, made):
    before = (made / INFO).read_bytes()
    assert "exists" in refused(lambda: pack_audit(folder, made))
    assert "exists" in refused(lambda: unpack_audit(made, folder))
    assert (made / INFO).read_bytes() == before


def test_an_audit_without_a_finished_context_is_not_packed(tmp_path):
    with AuditFolder(tmp_path / "audit", made_up_info()):
        pass
    assert "no finished context" in refused(
        lambda: pack_audit(tmp_path / "audit", tmp_path / "packed")
    )
    assert not (tmp_path / "packed").exists()


def test_a_failed_write_leaves_nothing(folder, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed, "write_atomic", full)
    with pytest.raises(OSError, match="No space"):
        pack_audit(folder, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize("keep", [0, 100, -20])
def test_damage_is_named(keep, made):
    whole = (made / PACKED).read_bytes()
    (made / PACKED).write_bytes(whole[:keep])
    said = refused(lambda: read_audit(made))
    assert PACKED in said
    assert "damaged" in said


def test_a_flipped_bit_in_the_data_is_found(made):
    content = bytearray((made / PACKED).read_bytes())
    content[content.index(b"\x28\xb5\x2f\xfd") + 12] ^= 1  # in the first page, after its header
    (made / PACKED).write_bytes(content)
    assert "damaged" in refused(lambda: read_audit(made))


def test_records_of_another_audit_are_refused(made, tmp_path):
    with AuditFolder(tmp_path / "other", made_up_info()) as opened:
        opened.write(made_up_rows(0))
    other = pack_audit(tmp_path / "other", tmp_path / "other_packed")
    (made / PACKED).write_bytes((other / PACKED).read_bytes())
    assert "another audit" in refused(lambda: read_audit(made))


def test_an_audit_does_not_continue_packed_records(made):
    info = read_audit(made).info
    assert "packed" in refused(lambda: AuditFolder(made, info))


# ---- what ships --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bench.names())
def test_shipped_records_can_be_judged_on(name):
    found = bench.load(name)
    assert len(found.context_C) >= 2
    rows = bench.leaderboard(
        found, {n: bench.BUILT_IN[n] for n in ("bare", "one", "oracle")}, episodes_per_context=2
    )
    assert rows[0].name == "oracle"


def test_something_ships_and_git_does_not_ignore_it():
    """The wheel holds all of the package that git does not ignore."""
    assert bench.names()
    files = [str(path) for path in SHIPPED.rglob("*") if path.is_file()]
    assert {Path(path).name for path in files} == {INFO, PACKED}
    done = subprocess.run(["git", "check-ignore", *files], cwd=SHIPPED, capture_output=True)
    if done.returncode == 128:
        pytest.skip("not a git checkout")
    assert done.stdout == b""


def test_an_unknown_name_lists_what_there_is():
    said = refused(lambda: bench.load("digits_impared"))
    assert said == (
        "unknown records 'digits_impared' (nor is there such a folder): did you mean "
        f"'digits_impaired'? valid: {', '.join(bench.names())}"
    )


def test_names_come_before_folders_and_paths_are_folders(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits_impaired").mkdir()
    assert find_records("digits_impaired") == SHIPPED / "digits_impaired"
    assert find_records("./digits_impaired") == Path("digits_impaired")
    assert "no audit" in refused(lambda: bench.load("./digits_impaired"))
    assert bench.load(folder).info.task == read_audit(folder).info.task


def test_the_script_packs_under_a_name(folder, tmp_path, capsys):
    def call(*argv: object) -> int:
        return run_command(PackRecords, pack, [str(word) for word in argv])

    assert call(folder, "mine", "--folder", tmp_path) == 0
    assert "bytes of records" in capsys.readouterr().out
    assert read_audit(tmp_path / "mine").info.contexts == 2
    assert call(folder, "mine", "--folder", tmp_path) == 2
    assert call(folder, "../mine", "--folder", tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_the_bench_packs_a_folder(folder, tmp_path):
    assert bench.load(bench.pack(folder, tmp_path / "x")).hosts == 2
    with pytest.raises(EsperError, match="no such folder"):
        bench.pack(tmp_path / "nothing", tmp_path / "y")
