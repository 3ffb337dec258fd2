"""Seeds whose steps work on rows in place, against the modules in float64."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, stack_module_state

from esper.kasmina.layers.blending import update_rows
from esper.leyline import BlendStyle
from kernel_support import DEVICE, close, numbers, require_kernels

require_kernels()

from esper.kasmina.blueprints.registry import BlueprintRegistry  # noqa: E402
from esper.kasmina.ops.kernels.seed_steps import SeedRows, add_seeds  # noqa: E402

ROWS, ALPHA = [4, 2, 1, 2], [0.5, 0.0, 1.0, 0.0]
USED, UNUSED = [0, 2], [1, 3]
KINDS = ["norm", "conv_small", "depthwise", "attention"]
if DEVICE.type == "cuda":  # without one, test_blocks.py has those made of blocks
    KINDS += ["conv_light", "conv_heavy"]
ADD, MULTIPLY, GATE = BlendStyle
MULTIPLIED, GATED = (MULTIPLY, ADD, ADD, MULTIPLY), (GATE, MULTIPLY, ADD, GATE)
"""Blend styles of the four entries."""


def modules(kind: str, channels: int):
    """Four seeds of a kind, their stacked state as leaves."""
    torch.manual_seed(3)
    own = [BlueprintRegistry.get(kind, "cnn").factory(channels) for _ in ROWS]
    for seed in own:
        for value in seed.parameters():
            torch.nn.init.uniform_(value.data, 0.3, 1.2)
    stacked = {n: v.detach() for n, v in stack_module_state(own)[0].items()}
    return own[0], {n: v.to(DEVICE).requires_grad_(True) for n, v in stacked.items()}


def activation(channels: int, seed: int) -> torch.Tensor:
    """Five rows of three images, channels last; odd sides."""
    return numbers((5, 3, 5, 3, channels), seed=seed).permute(0, 1, 4, 2, 3)


def gates_of(styles, channels: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Weight and bias, as parts of one tensor that the store would return."""
    if styles is None or GATE not in styles:
        return None
    both = numbers((len(ROWS), 2 * channels), seed=7, dtype=torch.float32).requires_grad_(True)
    weight, bias = both.split(channels, dim=1)
    return weight, bias


def seed_rows(template, state, styles=None, gates=None) -> SeedRows:
    style = None if styles is None else torch.tensor(styles, dtype=torch.int8, device=DEVICE)
    index, alpha = torch.tensor(ROWS, device=DEVICE), torch.tensor(ALPHA, device=DEVICE)
    return SeedRows(index, alpha, template.seed_steps(state), style, gates)


def expected_of(template, state, h, grad, styles=None, gates=()):
    """What torch computes in float64 for the used rows: rows and all gradients."""
    rows = torch.tensor(ROWS, device=h.device)[USED]
    x = h[rows].double().requires_grad_(True)
    wide = {n: v.detach()[USED].double().requires_grad_(True) for n, v in state.items()}
    wide_gates = [v.detach()[USED].double().requires_grad_(True) for v in gates]
    seeds = [
        functional_call(template.double(), {n: v[i] for n, v in wide.items()}, (x[i],))
        for i in range(len(USED))
    ]
    delta = torch.stack(seeds)
    if styles is not None:
        style = torch.tensor(styles, device=h.device)[USED].view(-1, 1, 1, 1, 1)
        shaped = [v[:, None, :, None, None] for v in wide_gates]
        gate = torch.sigmoid(shaped[0] * x + shaped[1]) if gates else None
        delta = update_rows(x, delta, style, gate, frozenset(styles))
    out = x + torch.tensor(ALPHA, device=h.device)[USED].view(-1, 1, 1, 1, 1) * delta
    wanted = (x, *wide.values(), *wide_gates)
    found = torch.autograd.grad(out, wanted, grad[rows].double(), materialize_grads=True)
    return rows, out, found


@pytest.mark.parametrize(
    ("styles", "own"), [(None, False), (None, True), (MULTIPLIED, True), (GATED, False)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_seeds_work_on_rows_in_place(kind, styles, own):
    """As if torch had gathered rows, run the seed and blended in its output."""
    template, state = modules(kind, 8)
    gates = gates_of(styles, 8)
    h, grad = activation(8, 1), activation(8, 2)
    h[2] = torch.nan  # named by unused entries alone
    leaf = h.clone().requires_grad_(True)
    made, given = leaf * 1.0, grad.clone()
    out = add_seeds(made, [seed_rows(template, state, styles, gates)], own, own)
    assert (out.data_ptr() == made.data_ptr()) == own
    found = torch.autograd.grad(out, (leaf, *state.values(), *(gates or ())), grad)
    assert torch.equal(grad, given) == (not own)
    rows, wanted, expected = expected_of(template, state, h, given, styles, gates or ())
    close(out[rows], wanted.detach().float())
    close(found[0][rows], expected[0].float())
    for one, other in zip(found[1:], expected[1:], strict=True):
        close(one[USED], other.float())
        assert not one[UNUSED].any()
    for untouched in (0, 3):
        assert torch.equal(out[untouched], h[untouched])
    assert torch.equal(found[0][[0, 2, 3]], given[[0, 2, 3]])


@pytest.mark.parametrize("styles", [None, GATED])
@pytest.mark.parametrize("kind", KINDS)
def test_unused_entries_touch_no_row(kind, styles):
    """Their parameters are those of a member that may be sick."""
    template, state = modules(kind, 8)
    for value in state.values():
        value.data[UNUSED] = torch.nan
    h, grad = activation(8, 1), activation(8, 2)
    leaf, gates = h.clone().requires_grad_(True), gates_of(styles, 8)
    out = add_seeds(leaf, [seed_rows(template, state, styles, gates)], False, False)
    (found,) = torch.autograd.grad(out, leaf, grad)
    assert torch.equal(out[[0, 2, 3]], h[[0, 2, 3]])
    assert torch.equal(found[[0, 2, 3]], grad[[0, 2, 3]])
    assert not torch.equal(out[[1, 4]], h[[1, 4]])


@pytest.mark.parametrize("styles", [None, GATED])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_kept_without_gradients(kind, styles):
    """Validation changes rows as training does."""
    template, state = modules(kind, 8)
    outputs = []
    for trains in (True, False):
        with torch.set_grad_enabled(trains):
            seeds = seed_rows(template, state, styles, gates_of(styles, 8))
            outputs.append(add_seeds(activation(8, 1), [seeds], False, False).detach())
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0], activation(8, 1))


def test_kinds_in_one_operation_are_as_one_after_the_other():
    """Groups have different rows."""
    states = [modules(kind, 8) for kind in KINDS[:4]]
    places = [([3, 0], [0.5, 1.0]), ([1, 1], [0.25, 0]), ([4, 4], [0, 1.0]), ([2, 2], [1.0, 0])]
    results = []
    for together in (True, False):
        leaf = activation(8, 1).requires_grad_(True)
        out = leaf * 1.0
        groups = [
            SeedRows(
                torch.tensor(rows, device=DEVICE),
                torch.tensor(alpha, device=DEVICE),
                template.seed_steps({n: v[:2] for n, v in state.items()}),
            )
            for (template, state), (rows, alpha) in zip(states, places, strict=True)
        ]
        for part in [groups] if together else [[group] for group in groups]:
            out = add_seeds(out, part, False, False)
        tensors = [v for _, state in states for v in state.values()]
        found = torch.autograd.grad(out, (leaf, *tensors), torch.ones_like(out))
        results.append((out.detach(), *found))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert all(found.any() for found in results[0])
