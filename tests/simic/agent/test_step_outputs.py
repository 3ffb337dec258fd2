"""The columns of `outputs_EX` hold what they name, on the device and on the host."""

from __future__ import annotations

import torch

from esper.leyline.actions import ActionHead, LifecycleOp
from esper.simic.agent.step_outputs import (
    CHOICE_A,
    LOG_PROB_A,
    OP_P_O,
    OUTPUT_COLUMNS,
    VALUE,
    pack_outputs,
)
from esper.tamiyo.heads import Choices
from esper.tamiyo.network import PolicyOutput

E, A, OPS = 3, len(ActionHead), len(LifecycleOp)


def test_every_column_gives_back_what_was_packed():
    count = iter(range(1000))
    choice_EA = torch.tensor([[next(count) for _ in range(A)] for _ in range(E)])
    log_prob_EA, op_p_EO = -torch.rand(E, A), torch.rand(E, OPS)
    unused_EA = torch.full((E, A), float("nan"))
    value_E = torch.arange(E) + 0.5
    choices = Choices(choice_EA, log_prob_EA, unused_EA, unused_EA, op_p_EO)
    outputs_EX = pack_outputs(PolicyOutput(choices, value_E))
    assert outputs_EX.shape == (E, OUTPUT_COLUMNS)
    assert outputs_EX.dtype is torch.float32
    for packed in (outputs_EX, torch.from_numpy(outputs_EX.numpy())):
        assert torch.equal(packed[:, CHOICE_A].to(torch.int64), choice_EA)
        assert torch.equal(packed[:, LOG_PROB_A], log_prob_EA)
        assert torch.equal(packed[:, OP_P_O], op_p_EO)
        assert torch.equal(packed[:, VALUE], value_E)


def test_columns_cover_everything_once():
    columns = list(range(OUTPUT_COLUMNS))
    parts = [*columns[CHOICE_A], *columns[LOG_PROB_A], *columns[OP_P_O], columns[VALUE]]
    assert parts == columns
