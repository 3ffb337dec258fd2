"""Fused blocks are torch's convolution, group norm and ReLU: `block.cu` itself, run on a CPU.

tests/cuda/test_blocks_cuda.py compares all shapes on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.func import vmap

from block_support import (
    ODD_SHAPES,
    TASK_SHAPES,
    Case,
    assert_near,
    case,
    distance,
    reference,
    shape,
)
from emulation_support import emulate, require_compiler
from esper.kasmina.blueprints.conv_heavy import ConvHeavy
from esper.kasmina.executors import slot_kernels
from esper.kasmina.executors import vmap as vmap_executor
from esper.kasmina.hosts.cnn import ConvBlock
from esper.kasmina.layers.blending import update_rows
from esper.kasmina.layers.layers import Conv2d
from esper.kasmina.ops import fused
from esper.kasmina.ops.block_parameters import BlockParameters
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.ops.kernels import block_plan, blocks
from esper.kasmina.ops.kernels.block_args import BlockArgs
from esper.kasmina.ops.kernels.block_plan import MAX_SHARED, plan
from esper.kasmina.ops.kernels.layout import empty_activation
from esper.kasmina.ops.kernels.seed_steps import SeedRows, add_seeds
from esper.leyline import BlendStyle
from kernel_support import choose_kernels, require_kernels
from support import batch, make_population

QUICK = [shape(3, 8, 5, 7), shape(16, 32, 4)]
"""Together: padded channels in, missing pixels, two groups, several planes, images per warp."""
ADD, MULTIPLY, GATE = BlendStyle
SLOW = [s for s in (*TASK_SHAPES, *ODD_SHAPES) if s not in QUICK]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    require_compiler()

    def launch(planned, backward, args, parts, rows):
        emulate(planned, args, backward, parts, rows)

    monkeypatch.setattr(blocks, "_launch", launch)


def computed(given, relu):
    out = blocks.convolve_normalised(*given.leaves, given.groups, relu)
    return out, *torch.autograd.grad(out, given.leaves, given.dy)


@pytest.mark.parametrize("block", QUICK, ids=lambda s: s.line())
@pytest.mark.parametrize("relu", [False, True])
def test_a_block_is_torchs(block, relu):
    given = case(block, rows=2, batch=3)
    assert_near(computed(given, relu), reference(given, relu))


@pytest.mark.slow
@pytest.mark.parametrize("block", SLOW, ids=lambda s: s.line())
def test_every_shape_of_a_task_is_torchs(block):
    assert block.unsupported_reason() is None
    given = case(block, rows=2, batch=plan(block).images + 1)
    assert_near(computed(given, True), reference(given, True))


@pytest.mark.parametrize("block", QUICK, ids=lambda s: s.line())
def test_a_skipped_row_is_zero_and_the_others_are_as_ever(block):
    """Even if what it would read is NaN."""
    given = case(block, rows=3, batch=plan(block).images + 1)
    expected = computed(given, True)
    with torch.no_grad():
        given.leaves[0][1] = torch.nan
    with kernel_scope(live_R=torch.tensor([1.0, 0.0, 0.5])):
        found = computed(given, True)
    for mine, wanted in zip(found, expected, strict=True):
        assert torch.equal(mine[[0, 2]], wanted[[0, 2]])
        assert not mine[1].any()


def test_padding_is_not_even_written(monkeypatch):
    def marked(*given: object) -> torch.Tensor:
        return empty_activation(*given).fill_(7.0)

    monkeypatch.setattr(blocks, "empty_activation", marked)
    monkeypatch.setattr(blocks, "output_activation", marked)
    given = case(QUICK[0], rows=3, batch=2)
    with kernel_scope(live_R=torch.tensor([1.0, -1.0, 0.0])):
        y, dx, *own = computed(given, True)
    for value in (y, dx):
        assert (value[1] == 7.0).all()
        assert not value[2].any()
        assert not (value[0] == 7.0).all()
    assert not any(gradient[1:].any() for gradient in own)


def test_rows_of_many_parts_are_summed_and_none_depends_on_the_others(monkeypatch):
    monkeypatch.setattr(block_plan, "MIN_STEPS", 1)
    block, batch = QUICK[1], 2 * plan(QUICK[1]).images + 3
    given = case(block, rows=2, batch=batch)
    assert plan(block).backward_parts(batch) == (3, 1)
    found = computed(given, True)
    assert_near(found, reference(given, True))
    second = (v[1:].detach().requires_grad_(True) for v in given.leaves)
    alone = computed(Case(*second, given.dy[1:], given.groups), True)
    assert all(torch.equal(a[0], f[1]) for a, f in zip(alone, found, strict=True))


def test_a_batch_shared_by_all_rows_gets_the_sum_of_their_gradients():
    given = case(QUICK[0], rows=3, batch=2, shared=True)
    assert_near(computed(given, True), reference(given, True))


def test_under_vmap_rows_are_computed_at_once():
    given = case(QUICK[0], rows=2, batch=2)
    run = vmap(lambda *row: blocks.convolve_normalised(*row, given.groups, True))
    out = run(*given.leaves)
    assert_near((out, *torch.autograd.grad(out, given.leaves, given.dy)), reference(given, True))


def kernel_args(given, **more):
    """Arguments as `blocks` makes them, for what autograd does not use yet."""
    (x, weight, scale, shift), dy = (v.detach() for v in given.leaves), given.dy
    statistics = torch.full((len(weight), dy.shape[1], given.groups, 2), torch.nan)
    fixed = {
        "x": x, "x_row": x.stride(0), "weight": weight, "weight_row": weight.stride(0),
        "scale": scale, "scale_row": scale.stride(0), "shift": shift,
        "shift_row": shift.stride(0), "y_row": dy.stride(0), "statistics": statistics,
        "batch": dy.shape[1],
    }  # fmt: skip
    return fixed | more


def run_kernel(block, backward, rows, args, seed=0):
    parts, steps = plan(block).backward_parts(args["batch"])
    emulate(plan(block), BlockArgs.of(steps=steps, **args), backward, parts, rows, seed)


@pytest.mark.parametrize("backward", [False, True])
def test_the_order_of_warps_changes_no_bit(backward):
    """A missing barrier would show; a warp may be a whole phase ahead of another."""
    block = shape(8, 8, 16)
    given = case(block, rows=1, batch=4)
    out = []
    for seed in (1, 2, 3):
        args = kernel_args(given, relu=True)
        y = torch.full_like(given.dy, torch.nan)
        run_kernel(block, False, 1, args | {"y": y}, seed)
        dx = torch.full_like(args["x"], torch.nan)
        partial = torch.full((1, 1, 8 * 8 * 9 + 16), torch.nan)
        if backward:
            more = {"y": given.dy, "dx": dx, "dx_row": dx.stride(0), "partial": partial}
            run_kernel(block, True, 1, args | more, seed)
        out.append((dx, partial) if backward else (y, args["statistics"]))
    assert all(a.isfinite().all() for a in out[0])
    assert all(torch.equal(a, b) for other in out[1:] for a, b in zip(out[0], other, strict=True))


def test_a_seed_reads_and_changes_its_own_rows_only():
    """Rows 4 and 1 of five; an unused entry names row 2 twice, whose member is NaN."""
    block = shape(8, 8, 4)
    given = case(block, rows=4, batch=3)
    index, alpha = torch.tensor([4, 2, 1, 2]), torch.tensor([0.5, 0.0, 1.0, 0.0])
    h = torch.randn(5, 3, 4, 4, 8).bfloat16().permute(0, 1, 4, 2, 3)
    h[2] = torch.nan
    before = h.clone()
    kept = torch.full_like(given.dy, torch.nan)
    args = kernel_args(given, alpha=alpha, live=alpha)
    forward = {"x": before, "x_index": index, "y": h, "y_index": index, "kept": kept}
    run_kernel(block, False, 4, args | forward)
    used, rows = [0, 2], index[[0, 2]]
    assert torch.equal(h[[0, 3]], before[[0, 3]])
    assert h[2].isnan().all()
    assert torch.equal(kept[used], before[rows])
    x = before[rows].detach().requires_grad_(True)
    own = (v[used].detach().requires_grad_(True) for v in given.leaves[1:])
    seeds = replace(given, **dict(zip(("weight", "scale", "shift"), own, strict=True)), x=x)
    factor = alpha[used].view(-1, 1, 1, 1, 1)
    grad = torch.randn(5, 3, 4, 4, 8).bfloat16().permute(0, 1, 4, 2, 3)
    seeds = replace(seeds, dy=(grad[rows].float() * factor))
    wanted = reference(seeds, False)
    assert distance(h[rows], before[rows].double() + factor * wanted[0]) < 4e-3
    back, partial = grad.clone(), torch.full((4, 1, 8 * 8 * 9 + 16), torch.nan)
    backward = {"x": kept, "y": back, "y_index": index, "dx": back, "dx_row": back.stride(0),
                "dx_index": index, "partial": partial}  # fmt: skip
    run_kernel(block, True, 4, args | backward)
    assert torch.equal(back[[0, 2, 3]], grad[[0, 2, 3]])
    assert distance(back[rows], grad[rows].double() + wanted[1]) < 6e-3
    assert not partial[[1, 3]].any()
    parts = partial[used, 0].split((576, 8, 8), dim=1)
    assert distance(parts[0].view_as(wanted[2]), wanted[2]) < 6e-3
    assert distance(parts[1], wanted[3]) < 6e-3
    assert distance(parts[2], wanted[4]) < 6e-3


def test_an_unused_entry_gets_a_gradient_of_zeros():
    block = shape(8, 8, 4)
    given = case(block, rows=2, batch=3)
    alpha = torch.tensor([0.0, 1.0])
    args = kernel_args(given, alpha=alpha, live=alpha, y=torch.zeros_like(given.dy))
    args["x"] = args["x"].clone()
    args["x"][0] = torch.nan
    run_kernel(block, False, 2, args)
    dx, partial = torch.full_like(args["x"], torch.nan), torch.full((2, 1, 592), torch.nan)
    more = {"y": given.dy, "dx": dx, "dx_row": dx.stride(0), "partial": partial}
    run_kernel(block, True, 2, args | more)
    assert not dx[0].any()
    assert not partial[0].any()
    assert dx[1].isfinite().all()


def test_nothing_is_written_beyond_a_batch():
    block = shape(16, 32, 4)
    given = case(block, rows=1, batch=3)
    bands = [torch.full((8192 + v.numel(),), 7.0).to(v) for v in (given.x, given.dy)]
    dx, y = (
        band[4096:-4096].as_strided(v.shape, v.stride(), 4096)
        for band, v in zip(bands, (given.x, given.dy), strict=True)
    )
    args = kernel_args(given)
    run_kernel(block, False, 1, args | {"y": y})
    partial = torch.empty(1, 1, 16 * 32 * 9 + 64)
    more = {"y": given.dy, "dx": dx, "dx_row": dx.stride(0), "partial": partial}
    run_kernel(block, True, 1, args | more)
    for band in bands:
        assert (band[:4096] == 7).all()
        assert (band[-4096:] == 7).all()


@pytest.mark.parametrize(
    "module", [ConvBlock(8, 8, 3), ConvHeavy(8, space=2)], ids=["host", "seed"]
)
def test_modules_use_blocks_only_where_asked(module, monkeypatch):
    """Our blocks in bf16 are torch's in float32; `own` and `torch` do not touch them."""
    calls = []
    real = blocks.convolve_normalised
    monkeypatch.setattr(blocks, "convolve_normalised", lambda *a: (calls.append(a[5]), real(*a))[1])
    monkeypatch.setattr(
        blocks, "unsupported_reason", lambda block, device: block.unsupported_reason()
    )
    choose_kernels(monkeypatch, "esper.kasmina.ops.fused", ours=True)
    x = torch.randn(3, 8, 4, 4)
    expected = module(x)
    assert not calls
    with torch.autocast("cpu", torch.bfloat16), kernel_scope(kernels="fused"):
        found = module(x.bfloat16())
    assert distance(found, expected.detach().double()) < 2e-2
    assert calls == ([True] if isinstance(module, ConvBlock) else [True, False])


def test_blocks_of_another_shape_are_left_to_others(monkeypatch):
    choose_kernels(monkeypatch, "esper.kasmina.ops.fused", ours=True)
    for inputs, outputs, side in ((64, 64, 8), (12, 8, 8), (8, 8, 64), (8, 8, 1), (8, 24, 8)):
        x, weight = torch.zeros(2, inputs, side, side), torch.zeros(outputs, inputs, 3, 3)
        own = torch.zeros(outputs), torch.zeros(outputs)
        assert fused.conv_norm(x, weight, *own, 2 if outputs == 24 else 1, True) is None
    assert fused.conv_norm(torch.zeros(2, 8, 8, 8), torch.zeros(8, 8, 1, 1), *own, 1, True) is None
    hooked = ConvBlock(8, 8, 3)
    hooked.conv.register_forward_hook(lambda *given: None)
    monkeypatch.setattr(Conv2d, "forward", lambda self, x: x)
    monkeypatch.setattr(fused, "conv_norm", None)  # nobody may call it
    with torch.autocast("cpu", torch.bfloat16), kernel_scope(kernels="own"):
        ConvBlock(8, 8, 3)(torch.zeros(2, 8, 4, 4))
    with torch.autocast("cpu", torch.bfloat16), kernel_scope(kernels="fused"):
        hooked(torch.zeros(2, 8, 4, 4))


def test_plans_fit_the_gpu():
    for block in TASK_SHAPES:
        assert plan(block).backward_bytes <= MAX_SHARED
        assert plan(block).forward_bytes <= plan(block).backward_bytes
        planned = plan(block)
        divided = [planned.forward_parts(512, rows) for rows in (1, 8, 64, 2000)]
        backward, seeds = planned.backward_parts(512), planned.backward_parts(512, few_rows=True)
        for parts, steps in (backward, seeds, *divided):
            assert (parts - 1) * steps * planned.images < 512 <= parts * steps * planned.images
        assert seeds[0] == 2 * backward[0], "groups of seeds have few rows"
        assert divided[0][0] >= divided[-1][0]
    assert (
        plan(TASK_SHAPES[0]).forward_parts(512, 8)[0]
        > plan(TASK_SHAPES[0]).forward_parts(512, 64)[0]
    )


@pytest.mark.parametrize("count", [1, 2], ids=["conv_light", "conv_heavy"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("styles", [None, (MULTIPLY, ADD, ADD, GATE), (GATE, ADD, MULTIPLY, ADD)])
def test_seeds_work_on_rows_in_place(count, own, styles):
    """As if torch had gathered rows, run the seed and blended in its output."""
    if styles is not None:
        require_kernels()
    block = shape(8, 8, 4)
    index, alpha = torch.tensor([4, 2, 1, 2]), torch.tensor([0.5, 0.0, 1.0, 0.0])
    used, rows = [0, 2], index[[0, 2]]
    cases = [case(block, rows=4, batch=3, seed=seed) for seed in range(count)]
    relus = [True] * (count - 1) + [False]
    h = torch.randn(5, 3, 4, 4, 8).bfloat16().permute(0, 1, 4, 2, 3)
    h[2] = torch.nan
    leaf = h.clone().requires_grad_(True)
    parts = [BlockParameters(*c.leaves[1:], 1, r) for c, r in zip(cases, relus, strict=True)]
    made = leaf * 1.0
    style = None if styles is None else torch.tensor(styles, dtype=torch.int8)
    gates = () if styles is None else tuple(torch.randn(2, 4, 8).requires_grad_(True))
    out = add_seeds(made, [SeedRows(index, alpha, parts, style, gates or None)], own, own)
    assert (out.data_ptr() == made.data_ptr()) == own
    tensors = [*(v for c in cases for v in c.leaves[1:]), *gates]
    grad = torch.randn(5, 3, 4, 4, 8).bfloat16().permute(0, 1, 4, 2, 3)
    given = grad.clone()
    found = torch.autograd.grad(out, (leaf, *tensors), grad)
    assert torch.equal(grad, given) == (not own)
    x = h[rows].double().requires_grad_(True)
    wide = [v.detach()[used].double().requires_grad_(True) for v in tensors]
    seed = x
    for i, relu in enumerate(relus):
        weight, scale, shift = wide[3 * i : 3 * i + 3]
        seed = torch.stack([
            torch.group_norm(torch.conv2d(one, w.bfloat16().double(), padding=1), 1, s, b)
            for one, w, s, b in zip(seed, weight, scale, shift, strict=True)
        ])  # fmt: skip
        seed = seed.relu() if relu else seed
    if style is not None:
        weight, bias = (v[:, None, :, None, None] for v in wide[-2:])
        gate, kinds = torch.sigmoid(weight * x + bias), style[used].view(-1, 1, 1, 1, 1)
        seed = update_rows(x, seed, kinds, gate, frozenset(styles))
    wanted = x + alpha[used].view(-1, 1, 1, 1, 1) * seed
    assert distance(out[rows], wanted.detach()) < 5e-3
    expected = torch.autograd.grad(wanted, (x, *wide), given[rows].double(), materialize_grads=True)
    assert distance(found[0][rows], expected[0]) < 1e-2
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert distance(one[used], other) < 2e-2 or not (one[used].any() or other.any())
        assert not one[[1, 3]].any()
    for untouched in (0, 3):
        assert torch.equal(out[untouched], h[untouched])
        assert torch.equal(found[0][untouched], given[untouched])
    assert torch.equal(found[0][2], given[2])


def test_groups_of_seeds_are_as_one_after_the_other():
    """conv_light in some rows and conv_heavy in others, in one operation."""
    cases = [case(shape(8, 8, 4), rows=2, batch=3, seed=seed) for seed in range(3)]
    relus = (False, True, False)
    parts = (BlockParameters(*c.leaves[1:], 1, r) for c, r in zip(cases, relus, strict=True))
    light, first, second = parts
    groups = [
        SeedRows(torch.tensor([3, 0]), torch.tensor([0.5, 1.0]), [light]),
        SeedRows(torch.tensor([1, 1]), torch.tensor([0.25, 0.0]), [first, second]),
    ]
    results = []
    for together in (True, False):
        leaf = torch.randn(4, 3, 4, 4, 8, generator=torch.Generator().manual_seed(5)).bfloat16()
        leaf = leaf.permute(0, 1, 4, 2, 3).requires_grad_(True)
        out = leaf * 1.0
        for part in [groups] if together else [[group] for group in groups]:
            out = add_seeds(out, part, False, False)
        tensors = [v for c in cases for v in c.leaves[1:]]
        found = torch.autograd.grad(out, (leaf, *tensors), torch.ones_like(out))
        results.append((out.detach(), *found))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert all(found.any() for found in results[0])


def trained(padded: bool, styles: BlendStyle | list[BlendStyle]):
    """What two batches change in five members with seeds in two slots, some in shadow rows."""
    population = make_population(5, "vmap")
    population.plant([1], "r0c0", "conv_light")
    population.plant([2, 3], "r0c1", "conv_heavy", styles)
    population.germinate([0, 4], "r0c1", "conv_light")
    population.begin_step()
    network = population.network
    stores = (network.host, *network.banks.values(), *network.gates.values())
    before = [store.flat_EP.detach().clone() for store in stores]
    for seed in range(2):
        population.train_rows(population.train_plan(padded=padded), *batch(5, seed))
    return [store.flat_EP.detach() - old for store, old in zip(stores, before, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("styles", [ADD, [MULTIPLY, ADD], [ADD, GATE]])
def test_members_train_as_if_rows_were_gathered(padded, styles, monkeypatch):
    """The rest of the network is torch's in float32; at the slots activations are bf16."""
    if styles is not ADD:
        require_kernels()
    real, added = vmap_executor._apply_slot, []

    def in_half(apply):
        def at_slot(network, groups, h, *given):
            half = empty_activation(h.shape, h, torch.bfloat16).copy_(h)
            return apply(network, groups, half, *given).float() if groups else h

        monkeypatch.setattr(vmap_executor, "_apply_slot", at_slot)

    def gathered(network, groups, half, *given):
        return real(network, groups, half.float(), *given).bfloat16()

    def in_place(network, groups, half, training, streams, own):
        added.extend(groups)
        own = slot_kernels.Ownership(activation=True, gradient=False)
        run_seeds = partial(vmap_executor._run_seeds, network, training, streams)
        with torch.autocast("cpu", torch.bfloat16), kernel_scope(kernels="fused"):
            return slot_kernels.apply_slot_by_kernels(network, groups, half, run_seeds, own)

    in_half(gathered)
    expected = trained(False, styles)
    in_half(in_place)
    monkeypatch.setattr(
        blocks, "unsupported_reason", lambda block, device: block.unsupported_reason()
    )
    choose_kernels(monkeypatch, "esper.kasmina.ops.fused", ours=True)
    found = trained(padded, styles)
    assert len(added) == 6
    most = [2e-2] * len(expected)
    if styles is not ADD:  # the rounding of what is blended in, with rows in place or copied
        monkeypatch.setattr(slot_kernels, "_seed_steps", lambda *given: ())
        copied = zip(trained(padded, styles), expected, strict=True)
        most = [max(2e-2, 1.05 * distance(one, other.double())) for one, other in copied]
    for one, other, bound in zip(found, expected, most, strict=True):
        assert distance(one, other.double()) < bound
