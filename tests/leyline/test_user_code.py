"""`user_code` guards every call of user code: exits are errors, torch's switches are put back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from esper.growing.progress import ProgressPrinter
from esper.leyline import torch_switches
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import user_callback, user_code
from esper.scripts.cli.command import exit_status_of
from esper.simic.training.config import TrainingConfig
from esper.simic.training.round_feed import RoundFeed
from esper.tasks.measuring import measure
from esper.tasks.member_functions import MemberFunction
from esper.tasks.metrics import make_metric
from esper.tasks.objectives import make_training_loss
from support import refused

CHANGES = {
    "set_grad_enabled": False,
    "set_default_dtype": torch.float64,
    "set_default_device": torch.device("meta"),
    "set_deterministic_debug_mode": 2,
    "set_num_threads": 3,
}


@pytest.fixture(autouse=True)
def fresh_switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody was warned; engines of the profile exact, in earlier tests, leave torch strict."""
    monkeypatch.setattr(torch_switches, "_warned", set())
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(0)
    yield
    torch.set_deterministic_debug_mode(before)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "torch_" in record.name]


# ---- switches -------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", CHANGES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_switch_is_put_back_with_one_line(switch, fails, caplog):
    before = torch_switches.read_switches()
    for _ in range(3):
        try:
            with user_code("Mine.act fails"):
                getattr(torch, switch)(CHANGES[switch])
                assert torch_switches.read_switches() != before
                if fails:
                    raise RuntimeError
        except EsperError:
            assert fails
        assert torch_switches.read_switches() == before
    (line,) = lines(caplog)
    assert line.startswith(f"Mine.act calls torch.{switch}({CHANGES[switch]}): put back to ")


def test_the_default_device_leaves_no_mode_behind():
    with user_code("Mine.act fails"):
        torch.set_default_device("meta")
    assert getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None


def test_what_holds_around_the_block_is_kept():
    with torch.no_grad():
        with user_code("Mine.act fails"):
            torch.set_grad_enabled(True)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_nothing_is_said_where_nothing_changes(caplog):
    with user_code("Mine.act fails"), torch.no_grad():
        torch.rand(1)
    assert lines(caplog) == []


def test_samples_of_one_set_are_one_culprit_and_other_code_is_another(caplog):
    for what in ("sample 1 of A fails", "sample 2 of A fails", "sample 1 of B fails"):
        with user_code(what):
            torch.set_grad_enabled(False)
    assert [line.split(" calls")[0] for line in lines(caplog)] == ["sample 1 of A", "sample 1 of B"]


def test_a_file_that_is_the_first_to_import_torch_finds_its_defaults_again(caplog):
    torch.set_default_dtype(torch.float64)
    torch_switches.put_back(None, "mine.py fails")  # None: torch was not loaded before
    assert torch.get_default_dtype() == torch.float32
    assert lines(caplog) == [
        "mine.py calls torch.set_default_dtype(torch.float64): put back to torch.float32"
    ]


# ---- exits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [None, 0, 3, "bye"])
def test_an_exit_is_an_error_of_one_line(code):
    def called() -> None:
        with user_code("Mine.act fails"):
            sys.exit(code)

    line = refused(called)
    assert line.startswith("Mine.act fails: SystemExit at test_user_code.py:")
    assert line.endswith("user code must not end the process: raise an error or return")


def test_an_interrupt_stays_one():
    with pytest.raises(KeyboardInterrupt), user_code("Mine.act fails"):
        raise KeyboardInterrupt


def test_exceptions_of_a_callback_pass_and_its_exit_is_an_error():
    with pytest.raises(LookupError), user_callback("on_round fails"):
        raise LookupError
    with (
        pytest.raises(EsperError, match="on_round fails: SystemExit"),
        user_callback("on_round fails"),
    ):
        sys.exit()


def leave(*_: object) -> float:
    sys.exit(0)


def test_on_round_of_grow_cannot_end_the_process():
    printer = ProgressPrinter(False, leave)
    printer._ended = object()  # type: ignore[assignment]
    assert "on_round fails: SystemExit" in refused(printer.on_saved)


def test_on_round_of_training_cannot_end_the_process():
    feed = RoundFeed(TrainingConfig(), leave, (), None)
    assert "on_round fails: SystemExit" in refused(lambda: feed(None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("vmapped", [None, False])
def test_an_own_loss_cannot_end_the_process(vmapped):
    loss = MemberFunction(leave)
    loss.vmapped = vmapped
    line = refused(lambda: loss(torch.ones(2, 3), torch.ones(2, 3)))
    assert "loss leave fails: SystemExit" in line


def test_an_own_metric_of_grow_cannot_end_the_process():
    targets, outputs = torch.tensor([0, 1] * 4), torch.eye(2).repeat(4, 1)
    loss = make_training_loss("auto", targets=targets, output_shape=(2,))
    metric = make_metric(leave, loss, targets, targets)
    line = refused(lambda: measure(metric, outputs, targets))
    assert "metric leave fails: SystemExit" in line


def test_a_command_whose_user_code_exits_deep_inside_fails_with_one_line(capsys):
    assert exit_status_of(leave) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: user code: SystemExit at test_user_code.py:")
    assert said.count("\n") == 1


MODEL = """
import sys, torch, numpy as np
X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
def data():
    return X, (X[:, 0] > 0).astype(np.int64)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def forward(self, x):
        sys.exit(0)
def leaves():
    sys.exit(0)
"""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("mine.py:Net", "--train", "mine.py:data"), "model Net fails: SystemExit at mine.py:11"),
        (("mine.py:Net", "--train", "mine.py:leaves"), "leaves fails: SystemExit at mine.py"),
        (("mine.py:leaves", "--train", "mine.py:data"), "SystemExit at mine.py:13"),
    ],
)  # fmt: skip
def test_models_and_data_cannot_end_a_command(argv, said, tmp_path, monkeypatch, capsys):
    from esper.scripts.grow import main

    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MODEL)
    assert main([*argv, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
