"""Users' models on a GPU: the same training as on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cuda_support import DEVICE, NEEDS_CUDA
from esper.device.rng import forked_rng
from esper.kasmina import Population
from esper.kasmina.tracing import finished_model, planted_model, trace_model
from hooked_models import HOOKED
from user_models import CASES

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]


@pytest.mark.parametrize(
    "name", ["resnet", "mobilenet", "vit", "gpt", "llama", "conv1d", "tabular"]
)
def test_traced_model_trains_as_on_the_cpu(name: str):
    case = CASES[name]
    with forked_rng(1):
        model, example, labels = case.build(), case.example(4), case.labels(4)
    host = trace_model(model, example, output=case.output)
    outputs = []
    for device in ("cpu", DEVICE):
        population = Population(host.factory, host.slots, host.blueprints, 2, device=device)
        x = host.inputs.pack(example)[None].to(device)
        y = labels[None].to(device)
        population.plant([0, 1], host.slots[-1], "norm")
        for _ in range(2):
            population.train_batch(x, y)
        with torch.no_grad():
            rows = population.forward(x)
            plain = population.member(0).to_plain()
            torch.testing.assert_close(plain(x[0]), rows[0], rtol=1e-4, atol=1e-4)
        outputs.append(rows.cpu())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", HOOKED)
def test_model_by_hooks_trains_as_on_the_cpu(name: str):
    case = HOOKED[name]
    with forked_rng(1):
        model, example, labels = case.build(), case.example(4), case.labels(4)
    host = trace_model(model, example)
    seeds = {host.slots[0]: "norm", host.slots[-1]: "norm"}
    outputs = []
    for device in ("cpu", DEVICE):
        network = planted_model(host, seeds, 3).to(device).eval()  # without dropout
        raw = [value.to(device) for value in host.inputs.values(example)]
        for _ in range(2):
            loss = F.cross_entropy(host.inputs.call(network, raw), labels.to(device))
            loss.backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        with torch.no_grad():
            found = host.inputs.call(network, raw)
            finished = host.inputs.call(finished_model(network), raw)
        torch.testing.assert_close(finished, found, rtol=1e-4, atol=1e-4)
        outputs.append(found.cpu())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-3, atol=1e-3)
