"""A task's data as the context of a round changes them, made on the device.

Every change is a hash of (seed, round, part, sample): it depends neither on the device nor on how
many samples are made at a time.

Shape letters: N samples of a part, P positions of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from esper.device.rng import derive_keys, normal_rows, permutations, random_bits
from esper.device.upload import upload
from esper.leyline.arrays import Floats
from esper.leyline.context import RoundContext
from esper.leyline.streams import UInt64Array, stream_keys, stream_seed
from esper.tasks.task_data import TaskData, TaskPart

CHUNK_NUMBERS: Final = 1 << 22
"""Noise is added to about this many numbers at a time, to bound the memory it takes."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundData:
    """The data of one round: copies of a task's data, changed by a context."""

    data: TaskData
    context: RoundContext
    seed: int
    round_index: int

    def part(
        self, name: str, device: torch.device, limit: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a part, or of its first samples, on a device.

        Samples of `train` are reordered if only a share of them is used, so that a prefix is a
        random subset. Only `train` has label noise.
        """
        part: TaskPart = getattr(self.data, name)
        context, training = self.context, name == "train"
        inputs = torch.from_numpy(np.array(part.inputs[:limit])).to(device)
        labels = torch.from_numpy(np.array(part.labels[:limit])).to(device)
        if context.permuted:
            inputs = self._permuted(inputs)
        if context.pixel_noise > 0:
            self._add_noise(inputs, name)
        if context.label_map is not None:
            labels = upload(np.array(context.label_map, dtype=np.int64), device)[labels]
        if training and context.label_noise > 0:
            labels = self._with_label_noise(labels)
        if training and context.data_share < 1.0:
            order_N = permutations(self._key("order"), len(labels), device)[0]
            inputs, labels = inputs[order_N], labels[order_N]
        return inputs, labels

    def normalised(self, inputs: Tensor) -> Tensor:
        """Inputs as float32, normalised as `TaskData.normalised` does; tokens unchanged."""
        if self.data.kind == "tokens":
            return inputs
        mean = self._per_channel(self.data.mean, inputs)
        std = self._per_channel(self.data.std, inputs)
        return inputs.to(torch.float32).sub_(mean).div_(std)

    def _key(self, *path: str) -> UInt64Array:
        return np.atleast_1d(stream_keys(self.seed, "context", self.round_index, *path))

    def _bits(self, name: str, count: int, device: torch.device) -> Tensor:
        """`[N]`: 64 random bits for each training sample."""
        return random_bits(self._key(name), count, device)[0]

    def _per_channel(self, values: Floats, inputs: Tensor) -> Tensor:
        return upload(values, inputs.device).view(-1, *(1,) * (inputs.ndim - 2))

    def _permuted(self, inputs: Tensor) -> Tensor:
        """Permute positions, the same way for all samples, channels and parts."""
        seed = stream_seed(self.seed, "context", self.round_index, "pixels")
        if inputs.ndim == 2:  # vectors: features are the positions
            order_P = np.random.default_rng(seed).permutation(inputs.shape[1])
            return inputs[:, upload(order_P, inputs.device)]
        flat = inputs.flatten(2)
        order_P = np.random.default_rng(seed).permutation(flat.shape[2])
        return flat[:, :, upload(order_P, inputs.device)].view(inputs.shape)

    def _add_noise(self, inputs: Tensor, name: str) -> None:
        """Add normal noise of `pixel_noise` standard deviations of the training inputs."""
        scale = self._per_channel(self.data.std * np.float32(self.context.pixel_noise), inputs)
        key = upload(self._key("noise", name).view(np.int64), inputs.device)
        keys_N = derive_keys(key, torch.arange(len(inputs), device=inputs.device))
        size = inputs[0].numel()
        samples = max(1, CHUNK_NUMBERS // size)
        for first in range(0, len(inputs), samples):
            rows = slice(first, first + samples)
            chunk = inputs[rows]
            noisy = normal_rows(keys_N[rows], size).view(chunk.shape).mul_(scale).add_(chunk)
            if inputs.dtype == torch.uint8:
                noisy = noisy.round_().clamp_(0, 255)
            chunk.copy_(noisy)

    def _with_label_noise(self, labels: Tensor) -> Tensor:
        """Replace labels by random ones with probability `label_noise`."""
        label_map = self.context.label_map
        groups = 1 + (int(self.data.train.labels.max()) if label_map is None else max(label_map))
        random_N = self._bits("labels", len(labels), labels.device) % groups
        share_N = self._bits("noisy labels", len(labels), labels.device).double() * 2.0**-64 + 0.5
        return torch.where(share_N < self.context.label_noise, random_N, labels)
