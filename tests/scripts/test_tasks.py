"""`esper tasks` lists every task, as a table and as JSON."""

import json
import subprocess
import sys

import pytest
import torch

from data_support import write_cifar_binary
from esper.scripts.tasks import main
from esper.tasks.listing import describe_task
from esper.tasks.registry import get_task_spec, task_names


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)


def test_json_holds_every_task(capsys, tmp_path):
    folder = write_cifar_binary(tmp_path / "mine")
    assert main(["--json", "--data-dir", str(tmp_path / "mine")]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert tuple(entries) == task_names()
    baseline = entries["cifar_baseline"]
    assert (baseline["host_parameters"], baseline["host_macs"]) == (6418, 811_328)
    assert baseline["slots"] == ["r0c0", "r0c1", "r0c2"]
    assert (baseline["batch_size"], baseline["batches_per_step"]) == (512, 24)
    assert baseline["data"]["found"]
    assert baseline["data"]["place"] == str(folder)
    assert not entries["mnist1d"]["data"]["found"]
    assert entries["mnist1d"]["data"]["source"].startswith("https://")
    assert entries["digits_baseline"]["data"]["place"] == "built in"


def test_the_table_names_every_task_and_where_data_are_missing(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    for name in task_names():
        assert name in out
    assert "missing: " in out
    assert "6,418 parameters" in out
    assert max(map(len, out.splitlines())) <= 140


def test_a_mistake_is_one_line(capsys):
    assert main(["--jsn"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_counting_hosts_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    describe_task(get_task_spec("tinyshakespeare"))
    assert (torch.get_rng_state() == state).all()


def test_help_needs_no_torch():
    code = (
        "import sys, esper.scripts.tasks as t\n"
        "try: t.main(['--help'])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
