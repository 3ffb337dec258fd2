"""One kernel hashes to the words that the torch code gives, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.device import rng
from kernel_support import DEVICE, choose_kernels, require_kernels

require_kernels()


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (3, 1000), (5, 4097), (2, 0)])
def test_words_are_those_of_torch(rows, count, monkeypatch):
    keys = torch.from_numpy(np.random.default_rng(rows).integers(-(2**63), 2**63, rows)).to(DEVICE)
    choose_kernels(monkeypatch, "esper.device.rng", ours=False)
    expected = rng.random_words(keys, count)
    choose_kernels(monkeypatch, "esper.device.rng", ours=True)
    assert torch.equal(rng.random_words(keys, count), expected)
    assert torch.equal(rng.random_words(keys[:1], count), expected[:1])
