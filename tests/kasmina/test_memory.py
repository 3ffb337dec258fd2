"""64 members of the 8-16-32 CNN host with every bank allocated fit in 2 GiB on the CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np, torch
from esper.kasmina import CNNHost, OptimConfig, Population, PopulationConfig
from esper.leyline import SeedStage

torch.set_num_threads(1)
slots = tuple(f"r{r}c{c}" for c in range(3) for r in range(2))
kinds = ("norm", "conv_light", "conv_heavy", "attention")
config = PopulationConfig(optim=OptimConfig(kind="adamw"))
p = Population(lambda: CNNHost(10, 3, 3, 8), slots, kinds, 64, config=config)
kind_ES = (np.arange(64)[:, None] + np.arange(6)[None, :]) % 4
for s in range(6):
    p.plant(np.arange(64), s, kind_ES[:, s], style=2)
assert len(p.network.banks) == 24 and len(p.network.gates) == 6
x = torch.randn(64, 8, 3, 32, 32)
p.train_batch(x, torch.randint(0, 10, (64, 8)))
assert len(p.trainer.seed_optimizer.state) == 30, "optimiser state of every bank"
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_64_members_with_all_banks_train_within_2_gib():
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True
    )
    peak_kib = int(out.stdout)
    assert peak_kib < 2 * 1024**2, f"{peak_kib / 1024:.0f} MiB at the peak, torch included"
