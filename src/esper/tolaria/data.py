"""Which batches members see: the data set once on the device, an order of its own for each member.

Images stay as they came (uint8); a batch is gathered, augmented and normalised on the device, on a
GPU by one kernel (`kasmina.kernels.batches`).
Data that do not fit stay in the host's memory: there batches are gathered into pinned memory, and
copied on a stream of their own while the device trains on the batch before.

Each member goes through whole epochs in permutations of its own, drawn from (seed, round, member,
epoch): neither its order nor its augmentation depends on how many members there are, on the device,
or on whether the order is prepared ahead.

Shape letters: E members, B batch, M batches of a step, N examples, C H W.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.device.rng import random_bits
from esper.device.triton_support import can_use_kernels
from esper.leyline.compute import PLACEMENTS, DataPlacement
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.streams import stream_keys

Augmentation = Literal["none", "flip", "crop_flip"]
AUGMENTATIONS: tuple[Augmentation, ...] = ("none", "flip", "crop_flip")
DEVICE_SHARE = 0.5
"""`auto` puts data on the device that take up to this share of its free memory."""
CROP_PADDING = 4
"""Pixels a cropped image may be shifted by, each way."""
_SIGN = -(1 << 63)
Gathered = tuple[Tensor, Tensor]
"""Examples and targets of a batch of all members `[E * B, ...]`, in pinned memory."""
Prepared = tuple[Tensor, Gathered | None]
"""Which examples each batch of a step takes `[E, M, B]`; its first batch, where it was gathered."""
Source = tuple[Tensor, Tensor, Tensor]
"""Examples and targets on the device, and which of them a batch takes `[E, B]`."""


class SharedBatchIterator:
    """Batches for all members at once, from data all members share."""

    def __init__(
        self,
        examples: npt.NDArray[np.generic],
        targets: npt.NDArray[np.int64],
        members: int,
        batch_size: int,
        batches_per_step: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        augmentation: Augmentation = "none",
        placement: DataPlacement = "auto",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`mean` and `std`: one value, or one per channel, in the examples' own units.

        Pixels (uint8) and real numbers are normalised in float32 and come as `dtype`; other whole
        numbers are token ids and stay as they are. Channels are axis 1 of images, else the last
        axis.

        `placement`: `stream` leaves the data in the host's memory; the device is never waited for.
        """
        if min(members, batch_size, batches_per_step) < 1:
            raise EsperError(
                f"members={members}, batch_size={batch_size}, batches_per_step={batches_per_step}: "
                f"all must be 1 or more"
            )
        _check_data(examples, targets, batch_size, augmentation)
        self.device = torch.device(device)
        self.members, self.batch_size, self.batches_per_step = members, batch_size, batches_per_step
        self.seed, self.round, self.augmentation, self.dtype = seed, 0, augmentation, dtype
        if min(std) <= 0 or not np.isfinite((*mean, *std)).all():
            raise EsperError(f"mean={tuple(mean)}, std={tuple(std)}: finite, and std above 0")
        real = np.issubdtype(examples.dtype, np.floating)
        own = np.array(examples, dtype=np.float32 if real else examples.dtype)
        self.placement = choose_placement(placement, own.nbytes, self.device)
        self._home = self.device if self.placement == "device" else torch.device("cpu")
        """Where examples and orders are."""
        self.examples = torch.from_numpy(own).to(self._home)
        self.targets = torch.from_numpy(np.array(targets)).to(self._home)
        shape = (-1, 1, 1) if examples.ndim == 4 else (-1,)
        self._mean = torch.tensor(mean, dtype=torch.float32).view(shape).to(self.device)
        self._std = torch.tensor(std, dtype=torch.float32).view(shape).to(self.device)
        self._mean_std_C: tuple[Tensor, Tensor] | None = None
        """Of each channel; None where a batch is not made by one kernel."""
        if can_use_kernels(self._mean) and _one_kernel_can(self.examples, self.targets, mean, std):
            channels = examples.shape[1]
            mean_C, std_C = (t.flatten().expand(channels) for t in (self._mean, self._std))
            self._mean_std_C = mean_C.contiguous(), std_C.contiguous()
        self._copying: torch.cuda.Stream | None = None
        """Where streamed batches are copied."""
        self._whole_EB = torch.arange(members * batch_size, device=self.device).view(members, -1)
        """What a streamed batch takes of the examples that came for it: all."""
        if self.placement == "stream":
            self._copying = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._epochs: dict[int, Tensor] = {}
        self._ahead: tuple[int, Future[Prepared]] | None = None
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(1, "esper-order") if self._home.type == "cpu" else None

    def reset(self, round_index: int) -> None:
        """Start an episode: the orders and augmentations of that round."""
        if self._ahead is not None and os.getpid() == self._process:
            self._ahead[1].cancel()
            if not self._ahead[1].cancelled():
                self._ahead[1].result()
        self.round, self._ahead = round_index, None
        self._epochs.clear()

    def step(
        self, step: int, out: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one step: inputs `[E, B, ...]` and targets `[E, B, ...]`.

        `out`: tensors of those shapes that every batch is written to, one after the other. On a GPU
        a batch is made on the stream that is current when it is asked for.
        """
        order_EMB, first = self._prepared(step)
        words_EMB = None if self.augmentation == "none" else self._words(step)
        for batch in range(self.batches_per_step):
            words_EB = None if words_EMB is None else words_EMB[:, batch]
            source = self.examples, self.targets, order_EMB[:, batch]
            if self._copying is not None:
                made = first if batch == 0 else None
                made = made or self._gather(source[2], self._room())
                source = self._arrived(made, self._copying)
            if self._mean_std_C is not None:
                yield self._by_one_kernel(source, words_EB, self._mean_std_C, out)
                continue
            x, targets = self._by_torch(source, words_EB)
            yield (x, targets) if out is None else (out[0].copy_(x), out[1].copy_(targets))

    def _by_torch(self, source: Source, words_EB: Tensor | None) -> tuple[Tensor, Tensor]:
        examples, targets_N, index_EB = source
        x, targets = examples[index_EB], targets_N[index_EB]
        if words_EB is not None:
            x = self._augment(x, words_EB)
        if x.dtype == torch.uint8 or x.dtype.is_floating_point:
            x = ((x.to(torch.float32) - self._mean) / self._std).to(self.dtype)
        return x, targets

    def _by_one_kernel(
        self,
        source: Source,
        words_EB: Tensor | None,
        mean_std_C: tuple[Tensor, Tensor],
        out: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        from esper.kasmina.kernels.batches import gather_batch

        padding = CROP_PADDING if self.augmentation == "crop_flip" else 0
        return gather_batch(
            *source, words_EB, *mean_std_C, padding=padding, dtype=self.dtype, out=out
        )

    # ---- streamed data --------------------------------------------------------------------

    def _room(self) -> Gathered:
        """Pinned memory for a batch; torch gives it out again only after all copies from it."""
        examples, targets = (
            torch.empty(self._whole_EB.numel(), *part.shape[1:], dtype=part.dtype, pin_memory=True)
            for part in (self.examples, self.targets)
        )
        return examples, targets

    def _gather(self, index_EB: Tensor, room: Gathered) -> Gathered:
        for part, gathered in zip((self.examples, self.targets), room, strict=True):
            torch.index_select(part, 0, index_EB.flatten(), out=gathered)
        return room

    def _arrived(self, gathered: Gathered, copying: torch.cuda.Stream) -> Source:
        """A batch on the device, as data of its own. It is copied beside what the current stream
        was asked for before; what that is asked for from now on comes after the copy."""
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(copying):
            examples, targets = (part.to(self.device, non_blocking=True) for part in gathered)
        current.wait_stream(copying)
        for part in (examples, targets):
            part.record_stream(current)  # its memory is not used again before it was read
        return examples, targets, self._whole_EB

    # ---- the order ------------------------------------------------------------------------

    def _prepared(self, step: int) -> Prepared:
        """The order of a step; where it is made on the CPU, the next step's is made beside
        training, and its first batch gathered if data are streamed."""
        if self._pool is None or os.getpid() != self._process:  # a fork does not take threads along
            return self._make_order(step), None
        if self._ahead is not None and self._ahead[0] == step:
            prepared = self._ahead[1].result()
        else:
            if self._ahead is not None:
                self._ahead[1].result()
            prepared = self._make_order(step), None
        room = None if self._copying is None else self._room()
        self._ahead = (step + 1, self._pool.submit(self._prepare, step + 1, room))
        return prepared

    def _prepare(self, step: int, room: Gathered | None) -> Prepared:
        order_EMB = self._make_order(step)
        return order_EMB, None if room is None else self._gather(order_EMB[:, 0], room)

    def _make_order(self, step: int) -> Tensor:
        examples = len(self.targets)
        length = self.batches_per_step * self.batch_size
        first, last = step * length, (step + 1) * length
        epochs = range(first // examples, -(-last // examples))
        self._epochs = {e: self._epochs[e] for e in epochs if e in self._epochs} | {
            e: self._permutation(e) for e in epochs if e not in self._epochs
        }
        joined = torch.cat([self._epochs[e] for e in epochs], dim=1)
        start = first - epochs[0] * examples
        part = joined[:, start : start + length]
        return part.reshape(self.members, self.batches_per_step, self.batch_size)

    def _permutation(self, epoch: int) -> Tensor:
        """`[E, N]`: examples sorted by a hash of (stream, example), read as unsigned."""
        keys_E = stream_keys(
            self.seed, "round", self.round, "member", np.arange(self.members), "epoch", epoch
        )
        words_EN = random_bits(keys_E, len(self.targets), self._home)
        return torch.argsort(words_EN ^ _SIGN, dim=1, stable=True)

    # ---- augmentation ---------------------------------------------------------------------

    def _words(self, step: int) -> Tensor:
        """`[E, M, B]`: a random word for each image of a step; each batch has its own streams."""
        member_E1 = np.arange(self.members)[:, None]
        batch_M = step * self.batches_per_step + np.arange(self.batches_per_step)
        keys_EM = stream_keys(
            self.seed, "round", self.round, "member", member_E1, "augment", batch_M
        )
        words = random_bits(keys_EM.ravel(), self.batch_size, self.device)
        return words.view(self.members, self.batches_per_step, self.batch_size)

    def _augment(self, x_EBCHW: Tensor, bits_EB: Tensor) -> Tensor:
        """Flip half of the images; shift them by up to CROP_PADDING pixels where asked."""
        flip_EB = (bits_EB & 1).bool()
        x = torch.where(flip_EB[..., None, None, None], x_EBCHW.flip(-1), x_EBCHW)
        if self.augmentation == "flip":
            return x
        choices = 2 * CROP_PADDING + 1
        down_EB = (bits_EB >> 8 & 0xFFFF) % choices
        right_EB = (bits_EB >> 24 & 0xFFFF) % choices
        return _shifted(x, down_EB, right_EB)


def _check_data(
    examples: npt.NDArray[np.generic],
    targets: npt.NDArray[np.int64],
    batch_size: int,
    augmentation: Augmentation,
) -> None:
    if len(examples) != len(targets):
        raise EsperError(f"{len(examples)} examples and {len(targets)} targets: give one each")
    if batch_size > len(examples):
        raise EsperError(
            f"batch_size={batch_size}: the data has {len(examples)} examples; lower it"
        )
    if augmentation not in AUGMENTATIONS:
        raise unknown_name("augmentation", augmentation, AUGMENTATIONS)
    if augmentation != "none" and examples.ndim != 4:
        raise EsperError(
            f"augmentation {augmentation!r} is for images [N, C, H, W], the examples have "
            f"shape {examples.shape}: use 'none'"
        )


def choose_placement(
    wanted: DataPlacement, size_bytes: int, device: torch.device
) -> Literal["device", "stream"]:
    """Where training data lie: on the device where they fit beside the members."""
    if wanted not in PLACEMENTS:
        raise unknown_name("data placement", wanted, PLACEMENTS)
    if device.type == "cpu":
        return "device"  # the host's memory is the device's
    if wanted != "auto":
        return wanted
    free, _ = torch.cuda.mem_get_info(device)
    return "device" if size_bytes <= DEVICE_SHARE * free else "stream"


def _one_kernel_can(
    examples: Tensor, targets: Tensor, mean: Sequence[float], std: Sequence[float]
) -> bool:
    """Images with one label each; a mean and a std for all channels or one each."""
    if examples.ndim != 4 or targets.ndim != 1:
        return False
    known = examples.dtype in (torch.uint8, torch.float32)
    return known and {len(mean), len(std)} <= {1, examples.shape[1]}


def _shifted(x_EBCHW: Tensor, down_EB: Tensor, right_EB: Tensor) -> Tensor:
    """Cut a window of the old size out of the zero-padded image, `down` and `right` pixels in."""
    height, width = x_EBCHW.shape[-2:]
    padded = F.pad(x_EBCHW, (CROP_PADDING,) * 4)
    rows = down_EB[..., None] + torch.arange(height, device=x_EBCHW.device)
    columns = right_EB[..., None] + torch.arange(width, device=x_EBCHW.device)
    channels = x_EBCHW.shape[2]
    row_index = rows[:, :, None, :, None].expand(-1, -1, channels, -1, padded.shape[-1])
    tall = padded.gather(3, row_index)
    column_index = columns[:, :, None, None, :].expand(-1, -1, channels, height, -1)
    return tall.gather(4, column_index)
