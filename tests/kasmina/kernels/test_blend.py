"""The blend kernel computes the operators of `kasmina.layers.blending`, and their gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.kasmina.layers.blending import update_rows
from esper.leyline import BlendStyle
from kernel_support import DEVICE, HALF, close, examples, numbers, require_kernels

require_kernels()

from esper.kasmina.ops.kernels.blend import BlendRows, blend_rows, gates_fit  # noqa: E402
from esper.kasmina.ops.kernels.rows import dense, gather  # noqa: E402

ADD, MULTIPLY, GATE = (int(style) for style in BlendStyle)


def channels_last(shape, seed=0):
    rows, batch, channels, height, width = shape
    return numbers((rows, batch, height, width, channels), seed).permute(0, 1, 4, 2, 3)


def gates_of(count, channels):
    weight, bias = numbers((2, count, channels), seed=7, dtype=torch.float32)
    return weight.requires_grad_(True), bias.requires_grad_(True)


def ours(h, rows, alpha, style, seed, gates, own=False):
    h, taken = gather(dense(h), [rows], [alpha], True)
    return blend_rows(
        h, [BlendRows(taken.detach(), seed(taken), rows, alpha, style, gates)], own, own
    )


def torches(h, rows, alpha, style, seed, gates):
    h = h.float()
    part = h.index_select(0, rows)
    wide = (-1, *[1] * (h.ndim - 1))
    present = frozenset(BlendStyle(int(kind)) for kind in style)
    gate = None
    if gates is not None:
        weight, bias = (value[:, None, :, None, None] for value in gates)
        gate = torch.sigmoid(weight * part + bias)
    update = update_rows(part, seed(part), style.view(wide), gate, present)
    return h.index_copy(0, rows, part + alpha.view(wide) * update)


def compared(h, rows, alpha, style, gates):
    """Outputs and gradients of ours and torch's, for seeds that are the sine of their input."""
    results = []
    for run in (ours, torches):
        leaf = h.detach().clone(memory_format=torch.preserve_format).requires_grad_(True)
        out = run(leaf, rows, alpha, style, torch.sin, gates)
        back = numbers(out.shape, seed=3).to(out.dtype)
        wanted = [leaf, *(gates or ())]
        results.append((out, *torch.autograd.grad(out, wanted, back, materialize_grads=True)))
    return results


@settings(max_examples=examples(16))
@given(
    shape=st.sampled_from([(4, 2, 8, 4, 4), (5, 3, 4, 3, 3), (3, 1, 16, 12, 12), (6, 1, 2, 1, 1)]),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_each_row_is_blended_by_its_own_operator(shape, seed, data):
    h = channels_last(shape, seed)
    order = data.draw(st.permutations(range(shape[0])))
    rows = torch.tensor(order[: data.draw(st.integers(1, shape[0]))], device=DEVICE)
    kinds = data.draw(st.lists(st.sampled_from([ADD, MULTIPLY, GATE]), min_size=len(rows)))
    style = torch.tensor(kinds[: len(rows)], dtype=torch.int8, device=DEVICE)
    alpha = torch.linspace(0.3, 1.0, len(rows), device=DEVICE)
    assert gates_fit(h)
    found, expected = compared(h, rows, alpha, style, gates_of(len(rows), shape[2]))
    for number, (mine, wanted) in enumerate(zip(found, expected, strict=True)):
        # Gradients of gates are sums over images and pixels.
        close(mine, wanted, 1 if number < 2 else shape[1] * shape[3] * shape[4])


@pytest.mark.parametrize("shape", [(4, 2, 6, 4, 4), (4, 3, 5)])
def test_without_gates_any_layout_is_blended(shape):
    h = numbers(shape)
    rows = torch.tensor([2, 0], device=DEVICE)
    style = torch.tensor([MULTIPLY, ADD], dtype=torch.int8, device=DEVICE)
    alpha = torch.tensor([0.5, 1.0], device=DEVICE)
    found, expected = compared(h, rows, alpha, style, None)
    for mine, wanted in zip(found, expected, strict=True):
        close(mine, wanted)


@pytest.mark.parametrize("kind", [ADD, MULTIPLY, GATE])
def test_unused_entries_touch_no_row_and_give_no_gradient(kind):
    """They share a row; their deltas are NaN."""
    h = channels_last((4, 2, 4, 3, 3))
    rows, alpha = torch.tensor([1, 3, 3], device=DEVICE), torch.tensor([0.5, 0, 0], device=DEVICE)
    style = torch.full((3,), kind, dtype=torch.int8, device=DEVICE)
    h.requires_grad_(True)
    gates, deltas = gates_of(3, 4), []

    broken = torch.tensor([1.0, torch.nan, torch.nan], device=DEVICE).to(HALF)

    def seed(part):
        deltas.append(torch.sin(part) * broken.view(-1, 1, 1, 1, 1))
        return deltas[0]

    out = ours(h, rows, alpha, style, seed, gates, own=True)
    back = channels_last(out.shape, seed=3)
    given = back.clone(memory_format=torch.preserve_format)
    found = torch.autograd.grad(out, [h, deltas[0], *gates], back)
    assert torch.equal(out[[0, 2, 3]], h[[0, 2, 3]])
    assert torch.equal(found[0][[0, 2, 3]], given[[0, 2, 3]])
    for gradient in found[1:]:
        assert not gradient[1:].any()
    assert found[1][0].any()


def test_groups_are_as_one_after_the_other():
    """A gated group and one that multiplies, in different rows, in one operation."""
    h = channels_last((5, 2, 4, 4, 4))
    alpha = torch.tensor([0.5, 0.0], device=DEVICE)
    places = [torch.tensor(rows, device=DEVICE) for rows in ([3, 0], [1, 0])]
    kinds = (GATE, ADD), (MULTIPLY, ADD)
    styles = [torch.tensor(kind, dtype=torch.int8, device=DEVICE) for kind in kinds]
    gates = [gates_of(2, 4), None]
    results = []
    for together in (True, False):
        leaf = h.detach().clone(memory_format=torch.preserve_format).requires_grad_(True)
        out, *taken = gather(dense(leaf), places, [alpha, alpha], True)
        groups = [
            BlendRows(t.detach(), torch.sin(t), rows, alpha, style, gate)
            for t, rows, style, gate in zip(taken, places, styles, gates, strict=True)
        ]
        for part in [groups] if together else [[group] for group in groups]:
            out = blend_rows(out, part, False, True)
        back = numbers(out.shape, seed=3)
        results.append((out, *torch.autograd.grad(out, [leaf, *gates[0]], back)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
        assert one.any()


@pytest.mark.parametrize("own", [False, True])
def test_only_what_is_owned_is_changed_in_place(own):
    h = channels_last((3, 2, 4, 4, 4)).requires_grad_(True)
    rows, alpha = torch.tensor([1], device=DEVICE), torch.ones(1, device=DEVICE)
    style = torch.tensor([MULTIPLY], dtype=torch.int8, device=DEVICE)
    middle = 1 * h
    before = middle.detach().clone()
    same, taken = gather(middle, [rows], [alpha], True)
    out = blend_rows(same, [BlendRows(taken.detach(), taken, rows, alpha, style, None)], own, own)
    assert torch.equal(middle.detach(), before) == (not own)
    back = channels_last(out.shape, seed=3)
    given = back.clone()
    torch.autograd.grad(out, h, back)
    assert torch.equal(back, given) == (not own)


@pytest.mark.parametrize("shape", [(2, 2, 6, 4, 4), (2, 3, 8), (2, 1, 512, 2, 2)])
def test_gates_of_other_layouts_are_left_to_torch(shape):
    h = numbers(shape)
    assert not gates_fit(channels_last(shape) if len(shape) == 5 else h)
    assert not gates_fit(numbers((2, 2, 8, 4, 4)))  # channels first


def test_half_precision_is_rounded_once():
    """A gated row in half precision is off by its own rounding, not by that of each operation."""
    if HALF is not torch.bfloat16:
        pytest.skip("the interpreter has no arithmetic in half precision")
    h = channels_last((2, 8, 8, 16, 16))
    rows, alpha = torch.tensor([1], device=DEVICE), torch.ones(1, device=DEVICE)
    style = torch.tensor([GATE], dtype=torch.int8, device=DEVICE)
    gates = gates_of(1, 8)
    delta = channels_last((1, 8, 8, 16, 16), seed=5)
    weight, bias = (value[:, None, :, None, None] for value in gates)
    value = h[1:].double()
    exact = value + torch.sigmoid(weight * value + bias) * delta.double()
    out = blend_rows(h, [BlendRows(h[1:], delta, rows, alpha, style, gates)], False, False)
    assert (
        torch.equal(out[1:], exact.to(HALF))
        or ((out[1:].double() - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all()
    )
