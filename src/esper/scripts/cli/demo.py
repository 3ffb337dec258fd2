"""A small problem to try `esper.grow` on: scikit-learn's digits and a small CNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def digits() -> tuple[Tensor, Tensor]:
    """1,797 images `[N, 1, 8, 8]` in 0..1, and their classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.as_tensor(found.images, dtype=torch.float32)[:, None] / 16.0
    return images, torch.as_tensor(found.target)


class SmallCNN(nn.Module):
    """Two convolutions and a linear layer, too narrow for the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8 * 2 * 2, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores `[N, 10]` of the classes."""
        out: Tensor = self.head(self.second(self.first(images)).flatten(1))
        return out
