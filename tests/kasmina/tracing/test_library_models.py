"""What models of torchvision and transformers do, in small: each is grown by a step."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.tracing import finished_model, planted_model, trace_model
from esper.kasmina.tracing.tracer import pick_output
from library_models import HOOKED, LIBRARY, Inception, TanhGELU, swin

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.arange(24).view(4, 6) % 13


def example(name: str) -> Tensor:
    return TOKENS if name == "cached_gpt" else IMAGES


@pytest.mark.parametrize("name", LIBRARY)
def test_slots_are_found_and_a_step_is_grown(name: str):
    build, least = LIBRARY[name]
    x = example(name)
    torch.manual_seed(0)
    host = trace_model(build(), x)
    assert bool(host.hooked) == (name in HOOKED), host.hooked
    assert len(host.slots) >= least, host.places
    assert not host.untraced
    seed = "mlp" if host.topology == "transformer" else "conv_light"
    network = planted_model(host, dict.fromkeys(host.slots, seed), 3)
    before = [p.detach().clone() for p in network.parameters()]
    logits = pick_output(network(x.clone()), None)
    y = TOKENS.flatten() if name == "cached_gpt" else torch.arange(4)
    F.cross_entropy(logits.flatten(0, -2), y).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
    changed = zip(network.parameters(), before, strict=True)
    assert sum(bool((a != b).any()) for a, b in changed) > 3 * least
    plain = finished_model(network)
    assert not any(type(part).__module__.startswith("esper") for part in plain.modules())
    with torch.no_grad():
        expected = network.eval()(x)
        torch.testing.assert_close(plain(x), expected, rtol=1e-5, atol=1e-5)
        again = pickle.loads(pickle.dumps(plain))
        torch.testing.assert_close(again(x), expected, rtol=1e-5, atol=1e-5)


def test_auxiliary_outputs_of_training_are_no_part_of_the_network():
    torch.manual_seed(0)
    model = Inception()
    host = trace_model(model, IMAGES)
    unused = host.plan.unused  # type: ignore[union-attr]
    assert unused
    assert all(name.startswith("auxiliary.") for name in unused)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    network = planted_model(trace_model(model, IMAGES), {}, 1).train()
    with torch.no_grad():
        expected = pick_output(copy.deepcopy(model).train()(IMAGES), None)
        torch.testing.assert_close(network(IMAGES), expected)


def test_images_with_channels_last_have_slots_for_seeds_of_images():
    host = trace_model(swin, IMAGES)
    assert host.topology == "cnn"
    shapes = set()
    network = planted_model(host, dict.fromkeys(host.slots, "norm"), 1)
    for seed in (part for part in network.modules() if isinstance(part, nn.GroupNorm)):
        seed.register_forward_hook(lambda _, given, __: shapes.add(tuple(given[0].shape[1:])))
    network(IMAGES)
    assert shapes == {(4, 4, 4), (8, 2, 2)}


def test_functions_with_numbers_and_tensors_do_not_end_the_process():
    model = nn.Sequential(nn.Linear(6, 8), TanhGELU(), nn.Linear(8, 3))
    host = trace_model(model, torch.randn(4, 6))
    assert list(host.places.values()) == ["after 1"]
