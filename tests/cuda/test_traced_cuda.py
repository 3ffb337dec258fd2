"""Users' models on a GPU: the same training as on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cuda_support import DEVICE, NEEDS_CUDA
from esper.device.rng import forked_rng
from esper.kasmina.tracing import finished_model, planted_model, trace_model
from hooked_models import HOOKED
from user_models import CASES

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]


CHAINS = ("resnet", "mobilenet", "vit", "gpt", "llama", "conv1d", "tabular")
MODELS = {name: CASES[name] for name in CHAINS} | {f"hooked_{n}": c for n, c in HOOKED.items()}


@pytest.mark.parametrize("name", MODELS)
def test_model_with_seeds_trains_as_on_the_cpu(name: str):
    case = MODELS[name]
    with forked_rng(1):
        model, example, labels = case.build(), case.example(4), case.labels(4)
    host = trace_model(model, example, output=getattr(case, "output", None))
    seeds = {host.slots[0]: "norm", host.slots[-1]: "norm"}
    outputs = []
    for device in ("cpu", DEVICE):
        network = planted_model(host, seeds, 3).to(device).eval()  # without dropout
        raw = [value.to(device) for value in host.inputs.values(example)]
        for _ in range(2):
            out = host.inputs.call(network, raw)
            loss = F.cross_entropy(out.flatten(0, -2), labels.to(device).flatten())
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
