"""Kernels are built for shapes of activations and parameters, not for numbers of rows."""

from __future__ import annotations

import pytest
import torch
from torch.func import stack_module_state

from cuda_support import DEVICE, NEEDS_CUDA
from esper.kasmina.blueprints.registry import BlueprintRegistry

pytest.importorskip("triton")

from build_times import count_builds
from esper.kasmina.ops.kernels.gather import gather_rows, scatter_rows
from esper.kasmina.ops.kernels.seed_steps import SeedRows, add_seeds

pytestmark = NEEDS_CUDA
KINDS = ("norm", "conv_small", "depthwise", "attention")


def train_seeds(rows: int) -> None:
    """Run seeds of all kinds forward and backward, gathered from members and returned to them."""
    h = torch.randn(rows + 1, 4, 8, 8, 8, device=DEVICE).bfloat16().permute(0, 1, 4, 2, 3)
    index = torch.arange(rows, device=DEVICE)
    for kind in KINDS:
        template = BlueprintRegistry.get(kind, "cnn").factory(8)
        state = stack_module_state([template] * rows)[0]
        own = {n: v.detach().to(DEVICE).requires_grad_(True) for n, v in state.items()}
        seeds = SeedRows(index, torch.ones(rows, device=DEVICE), template.seed_steps(own))
        leaf = h.clone().requires_grad_(True)
        out = add_seeds(leaf, [seeds], False, False)
        torch.autograd.grad(out, (leaf, *own.values()), torch.ones_like(out))
    flat = torch.randn(8, 100, device=DEVICE)
    member, frozen = index % 8, torch.zeros(rows, dtype=torch.bool, device=DEVICE)
    scatter_rows(gather_rows(flat, member), member, frozen, 8)


def test_another_number_of_rows_builds_no_kernel():
    """In the middle of a run a build costs as much as a step."""
    train_seeds(8)
    with count_builds(DEVICE) as builds:
        for rows in (4, 12, 16, 20, 48, 72):
            train_seeds(rows)
    assert not builds.problem
    assert builds.built + builds.fetched == 0
