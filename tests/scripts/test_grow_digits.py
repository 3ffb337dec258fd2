"""The first job, run as people run it: a small real run in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from esper.scripts.door import enter
from esper.scripts.grow_digits import grow_digits
from esper.scripts.growth_config import GrowDigits

MODULE = "esper.scripts.grow_digits"
TINY = {
    "--members": 2,
    "--steps": 11,
    "--batches": 2,
    "--batch-size": 32,
    "--host-steps": 2,
    "--incubate-steps": 3,
    "--probation-steps": 3,
    "--prune-steps": 0,
}

Done = subprocess.CompletedProcess[str]


def tiny(path: Path, **changes: object) -> list[str]:
    """Flags of a run of seconds."""
    flags = TINY | {f"--{name}": value for name, value in changes.items()} | {"--out": path}
    return [str(word) for pair in flags.items() for word in pair]


def start(*flags: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
    )


def finish(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=120)
    return Done(process.args, process.returncode, out, err)


def numbers(path: Path) -> dict:
    """What a run wrote, without what may differ between equal runs."""
    record = json.loads(path.with_suffix(".json").read_text())
    del record["seconds"]
    del record["config"]["out"]
    return record


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Done]]:
    """The same small run in two processes at once."""
    folder = tmp_path_factory.mktemp("twice")
    paths = [folder / f"new folder {i}" / "growth.png" for i in range(2)]
    processes = [start(*tiny(path), "--static-full") for path in paths]
    return [(path, finish(process)) for path, process in zip(paths, processes, strict=True)]


@pytest.fixture(scope="module")
def first(twice: list[tuple[Path, Done]]) -> tuple[Path, Done]:
    return twice[0]


def call(*flags: str) -> int:
    """The command inside this process, where torch is loaded already; its exit status."""
    return enter(GrowDigits, grow_digits, flags)


def test_run_prints_table_summary_and_paths(first):
    path, done = first
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for part in ("r0c0", "params", "MACs", "gain", "n = 2 members", str(path)):
        assert part in done.stdout
    assert "step 11/11" in done.stdout


def test_run_writes_picture_and_numbers(first):
    path, _ = first
    assert imread(path)[..., :3].std() > 0.05
    assert sorted(os.listdir(path.parent)) == ["growth.json", "growth.png"]
    record = numbers(path)
    assert record["config"]["members"] == 2
    arms = record["runs"][0]["arms"]
    assert set(arms) == {"grown", "alone", "full"}
    assert np.shape(arms["grown"]["val_score_TE"]) == (11, 2)
    assert arms["full"]["parameters_E"] > arms["alone"]["parameters_E"]


def test_grown_and_alone_are_the_same_until_seeds_blend(first):
    """Same initial weights, same batches; incubation does not disturb the host."""
    arms = numbers(first[0])["runs"][0]["arms"]
    grown, alone = (np.array(arms[name]["train_loss_TE"]) for name in ("grown", "alone"))
    assert np.allclose(grown[:5], alone[:5], rtol=0, atol=1e-5)
    assert not np.allclose(grown[-1], alone[-1], rtol=0, atol=1e-4)


def test_every_seed_is_judged_by_its_contribution(first):
    """Kept where the contribution is above its standard error, pruned elsewhere."""
    lives = numbers(first[0])["runs"][0]["lives"]
    worth, error = (np.array(lives[f"contribution{end}_ES"]) for end in ("", "_se"))
    assert np.isfinite(worth).all()
    assert ((worth > error) == ~np.array(lives["pruned_ES"])).all()


def test_same_seed_gives_identical_numbers(twice):
    (one, _), (other, _) = twice
    assert numbers(one) == numbers(other)


def test_member_is_the_same_whatever_the_population_size(first, tmp_path: Path):
    assert call(*tiny(tmp_path / "three.png", members=3)) == 0
    two, three = (numbers(path)["runs"][0]["arms"] for path in (first[0], tmp_path / "three.png"))
    for arm in ("grown", "alone"):  # 10 steps of 2 batches: what is promised for 20 batches
        pair = [np.array(arms[arm]["train_loss_TE"])[:10, 0] for arms in (two, three)]
        assert np.allclose(*pair, rtol=0, atol=1e-5)


def test_several_seeds_are_reported_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "seeds.png"
    assert call(*tiny(path, seeds=2, seed=5)) == 0
    assert "n = 2 run seeds" in capsys.readouterr().out
    record = numbers(path)
    assert [one["seed"] for one in record["runs"]] == [5, 6]
    assert len(record["paired_difference"]["alone"]["values"]) == 2
    assert imread(path)[..., :3].std() > 0.05


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--members", "0"], "--members 0"),
        (["--members", "many"], "--members"),
        (["--membrs", "3"], "did you mean --members?"),
        (["--steps", "10"], "needs 21 (5 alone + 5 incubating"),
        (["--blend-steps", "4"], "choose from 3, 5, 8"),
        (["--blueprint", "conv_hevy"], "did you mean 'conv_heavy'?"),
        (["--slots", "r0c9"], "unknown slot 'r0c9'"),
        (["--out", "{tmp}/file/growth.png"], "cannot be written"),
        (["--out", "{tmp}"], "must end in .png"),
        (["--out", "{tmp}/folder.png"], "is a folder"),
        (["--device", "abacus"], "device 'abacus'"),
        (["--grown.lr", "0"], "--grown.lr 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.png").mkdir()
    defaults = [] if "--out" in flags else ["--out", str(tmp_path / "growth.png")]
    assert call(*(flag.format(tmp=tmp_path) for flag in flags), *defaults) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.startswith("error: ")
    assert len(printed.err.splitlines()) == 1
    assert "step " not in printed.out.partition("a step is")[2]
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.png"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_refusal_is_the_exit_status_of_the_command(monkeypatch: pytest.MonkeyPatch, encoding: str):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    done = finish(start("--membrs", "3"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: Unrecognized options: --membrs, 3: did you mean --members? --help lists the flags\n"
    )


def test_help_is_light():
    code = (
        "import sys; sys.argv = ['grow_digits', '--help']\n"
        f"from {MODULE} import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
        "heavy = {'torch', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for flag in ("--members", "--seeds", "--static-full", "--alone.lr", "--out"):
        assert flag in done.stdout


def test_interrupt_ends_with_130_and_one_line(tmp_path: Path):
    process = start("--steps", "400", "--out", str(tmp_path / "growth.png"))
    assert process.stdout is not None
    process.stdout.readline()  # the setting line: training begins
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "interrupted\n"
    assert os.listdir(tmp_path) == []
