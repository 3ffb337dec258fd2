"""Branches outside a capture are plain calls; tests/cuda/test_graphs_cuda.py has the others."""

from __future__ import annotations

import pytest
import torch

from esper.device.branches import Branches


def test_without_a_capture_work_is_called_in_order():
    done = []
    with Branches(torch.device("cpu")) as branches:
        for number in range(3):
            out = branches.run(lambda n=number: done.append(n) or torch.tensor(n), None)
            assert out == number
    assert done == [0, 1, 2]


def test_an_error_of_the_work_passes():
    with pytest.raises(KeyError), Branches(torch.device("cpu")) as branches:
        branches.run(lambda: {}["missing"])
