"""A user's script under torchrun: grows a network on several ranks, and writes what it got.

torchrun --standalone --nproc-per-node 2 tests/grow_ranks_script.py OUT CASE EXECUTOR
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import esper


class Small(nn.Module):
    """Batch norm, dropout and two places to grow at."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 16, bias=False),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Linear(16, 16),
            nn.ReLU(),
        )
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x)))


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(300, 6, generator=generator)
    return x, (x[:, :3] * x[:, 3:]).argmax(dim=1)


def main(out: Path, case: str, executor: str) -> None:
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(100 + rank)  # ranks start from different weights, and must not notice
    train = data(rank if case == "other data" else 0)
    stages = 0
    resume = next((out / "runs").iterdir()) if case == "resumed" else None

    def on_round(progress: object) -> None:
        nonlocal stages
        stages += 1

        if case == "stopped":
            os.kill(os.getpid(), signal.SIGINT)

    model: object = Small() if case == "instance" else Small
    result = esper.grow(
        model,
        train=train,
        budget=esper.Budget(host_runs=6),
        epochs=3,
        batch_size=25,
        widths=(),
        slots=2,
        device="cpu",
        executor=executor,
        folder=out / "runs",
        verbose=False,
        resume=resume,
        on_round=on_round,
    )
    found = [
        {"topology": n.topology, "figures": [n.params, n.val_score, n.test_score]}
        for n in (*result.record.networks, result.record.host)
    ]
    weights = {
        name: value.double().sum().item() for name, value in result.model.state_dict().items()
    }
    reported = {
        "complete": result.record.complete,
        "networks": found,
        "weights": weights,
        "folder": str(result.folder),
        "stages": stages,
    }
    (out / f"{executor}-{rank}.json").write_text(json.dumps(reported))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
