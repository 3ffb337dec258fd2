"""Files of an audit: what is written is read, what is damaged is named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from audit_rows import made_up_info, made_up_rows
from esper.leyline.errors import EsperError
from esper.storage.sealed_json import seal
from esper_lab.audit import rows as rows_module
from esper_lab.audit.folder import AuditFolder
from esper_lab.audit.records import (
    INFO,
    RECORDS,
    read_audit,
    read_grown,
    read_info,
    row_shape,
    rows_path,
)
from esper_lab.audit.rows import read_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Contexts 0 and 2 of three are there, and one that was grown."""
    with AuditFolder(tmp_path / "audit", made_up_info()) as opened:
        for context in (0, 2):
            opened.write(made_up_rows(context))
        opened.write(made_up_rows(2, (2,)), grown=True)
    return tmp_path / "audit"


def test_what_is_written_is_read(folder):
    audit = read_audit(folder)
    assert audit.info == made_up_info()
    for context in (0, 2):
        rows = made_up_rows(context)
        for field in fields(audit.records):
            name, _, letters = field.name.rpartition("_")
            measured = getattr(rows, f"{name}_{letters[1:]}")
            np.testing.assert_array_equal(getattr(audit.records, field.name)[context], measured)
        for field in fields(audit.contexts):
            drawn = getattr(rows.drawn, field.name.removesuffix("_C"))
            assert getattr(audit.contexts, field.name)[context] == drawn
        path = rows_path(folder, context)
        assert read_rows(path, row_shape(audit.info, context)) == rows


def test_missing_contexts_are_nan(folder):
    audit = read_audit(folder)
    for field in fields(audit.records):
        assert np.isnan(getattr(audit.records, field.name)[1]).all(), field.name
    assert np.isnan(audit.contexts.budget_C).tolist() == [False, True, False]


def test_grown_topologies_are_read_with_their_sizes(folder):
    grown = read_grown(folder)
    assert grown.info.topologies == (("norm", "norm"),)
    assert (grown.info.params, grown.info.cost) == ((14,), (2.0,))
    assert np.isnan(grown.records.test_CHK[0]).all()
    np.testing.assert_array_equal(grown.records.test_CHK[2], made_up_rows(2, (2,)).test_HK)


@pytest.mark.parametrize("grown", [False, True])
def test_damage_is_named_and_never_read_in_silence(folder, grown):
    path, shape = rows_path(folder, 2, grown), row_shape(read_info(folder), 2, grown)
    sound = path.read_bytes()
    whole = read_rows(path, shape)
    chance = np.random.default_rng(0)
    harmed = [sound[:at] for at in chance.integers(len(sound), size=20)]
    for at in chance.integers(len(sound), size=150):
        flipped = bytes([sound[at] ^ (1 << int(chance.integers(8)))])
        harmed.append(sound[:at] + flipped + sound[at + 1 :])
    noticed = []
    for content in harmed:
        path.write_bytes(content)
        try:
            assert read_rows(path, shape) == whole
        except EsperError as error:
            noticed.append(str(error))
    assert len(noticed) > 100
    assert all(str(path) in line and "\n" not in line for line in noticed)


def test_a_file_of_another_audit_or_context_is_refused(folder):
    info = read_info(folder)
    other = row_shape(replace(info, seed=2), 0)
    with pytest.raises(EsperError, match=r"context-0000.parquet belongs to another audit"):
        read_rows(rows_path(folder, 0), other)
    rows_path(folder, 0).rename(rows_path(folder, 1))
    with pytest.raises(EsperError, match=r"context-0001.parquet is damaged"):
        read_audit(folder)


def test_files_of_another_schema_say_so(folder, monkeypatch):
    monkeypatch.setattr(rows_module, "SCHEMA", 0)
    with pytest.raises(EsperError, match="has schema 1, this Esper reads schema 0"):
        read_audit(folder)
    monkeypatch.undo()
    document = json.loads((folder / INFO).read_text())
    del document["checksum"]
    (folder / INFO).write_text(json.dumps(seal(document | {"schema": 99})))
    with pytest.raises(EsperError, match="has schema 99, this Esper reads schema 1"):
        read_audit(folder)


def test_no_audit_there(tmp_path):
    for path, found in ((tmp_path, "no audit"), (tmp_path / "absent", "no such folder")):
        with pytest.raises(EsperError, match=found):
            read_audit(path)


# ---- folders -----------------------------------------------------------------------------------


def test_an_audit_may_grow_by_contexts_but_not_change(folder):
    with AuditFolder(folder, made_up_info(contexts=5)) as opened:
        assert [opened.has(context) for context in range(5)] == [True, False, True, False, False]
    assert read_audit(folder).info.contexts == 5
    for changes, said in (
        ({"seed": 2}, "seed is 1 there and 2 here"),
        ({"contexts": 4}, "--contexts 4 is less"),
        ({"settings": {"batch_size": "8"}}, "settings.batch_size is '4' there and '8' here"),
        ({"grown": (1,)}, "grown"),
        ({"device": "cuda:0 (H200)"}, "device"),
    ):
        with pytest.raises(EsperError, match=said) as refused:
            AuditFolder(folder, made_up_info(**({"contexts": 5} | changes)))
        assert str(folder) in str(refused.value)


def test_results_do_not_depend_on_the_name_of_the_processor(folder):
    with AuditFolder(folder, made_up_info(device="cpu (another)")) as opened:
        assert opened.has(0)


def test_two_runs_in_one_folder_refuse_each_other(folder):
    with (
        AuditFolder(folder, made_up_info()),
        pytest.raises(EsperError, match="is in use"),
    ):
        AuditFolder(folder, made_up_info())
    with AuditFolder(folder, made_up_info()):
        pass


KILLED = """
import os, signal
from pathlib import Path
from audit_rows import made_up_info, made_up_rows
from esper_lab.audit.folder import AuditFolder
opened = AuditFolder(Path({path!r}), made_up_info())
os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
opened.write(made_up_rows(1))
"""


def test_killed_while_writing_leaves_nothing_half(folder):
    code = f"import sys; sys.path[:0] = {sys.path!r}\n" + KILLED.format(path=str(folder))
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((folder / RECORDS).glob(".*.tmp"))) == 1
    assert np.isnan(read_audit(folder).records.test_CHK[1]).all()
    with AuditFolder(folder, made_up_info()) as opened:
        assert not opened.has(1)
        assert not list((folder / RECORDS).glob(".*"))
        opened.write(made_up_rows(1))
    assert np.isfinite(read_audit(folder).records.test_CHK).all()
