"""`esper.grow` with a plain ResNet-20, under its own size, on all of CIFAR-10, without a hint.

    python lab/scripts/grow_resnet20.py --data data --minutes 10 --out out/resnet20

DATA holds `cifar-10-batches-bin`. Prints the result and a line of JSON: test accuracy of the pick
and of ResNet-20 as given, seconds, runs, and the recipe of the pick.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

import esper
from own_network_models import RESNET_20, ResNet

FOLDER: Final = "cifar-10-batches-bin"
RECORD: Final = 1 + 3 * 32 * 32


def images(folder: Path, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Pixels from 0 to 1, and classes."""
    raw = np.concatenate([np.fromfile(folder / FOLDER / f"{name}.bin", np.uint8) for name in names])
    records = raw.reshape(-1, RECORD)
    x = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255.0)
    return x, torch.from_numpy(records[:, 0].astype(np.int64))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    x, y = images(args.data, [f"data_batch_{number}" for number in range(1, 6)])
    test = images(args.data, ["test_batch"])
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    size = sum(parameter.numel() for parameter in ResNet(RESNET_20).parameters())
    began = time.monotonic()
    result = esper.grow(
        lambda: ResNet(RESNET_20), ((x - mean) / std, y), test=((test[0] - mean) / std, test[1]),
        budget=esper.Budget(params=size, minutes=args.minutes), device=args.device, seed=args.seed,
        folder=args.out,
    )  # fmt: skip
    seconds, best = time.monotonic() - began, result.best
    print(result)
    print(json.dumps({
        "minutes": args.minutes, "seed": args.seed, "seconds": round(seconds, 1),
        "runs": len(result.table().rows), "params": best.params, "test": best.test_score,
        "as given": result.host.test_score, "recipe": asdict(best.recipe),
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
