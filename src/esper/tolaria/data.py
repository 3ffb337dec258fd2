"""Train batches for all members from one shared copy of the data.

Images are kept as uint8; batches are gathered, augmented and normalised on the device, on a GPU by
one fused kernel (`kasmina.ops.kernels.batches`). Data that do not fit on the device stay in host
memory: batches are gathered into pinned memory and copied on a separate stream during training.

Each member iterates over epochs in its own permutations, derived from (seed, round, member, epoch).
Neither its order nor its augmentation depends on the number of members, the device or prefetching.
On a GPU the indices and random bits of the next step are queued behind the batches of this one, so
that its first batch need not wait for them.

Shape letters: E members, B batch, M batches of a step, N examples, C H W.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.device.rng import permutations, random_bits
from esper.device.triton_support import can_use_kernels
from esper.device.upload import upload
from esper.leyline.arrays import Ints
from esper.leyline.compute import PLACEMENTS, DataPlacement
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.streams import stream_keys
from esper.tasks.context_data import RoundData
from esper.tasks.spec import Augmentation

AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)
DEVICE_SHARE = 0.5
"""`auto` keeps data on the device up to this fraction of its free memory."""
CROP_PADDING = 4
"""Maximal shift of a random crop, in pixels."""
PinnedBatch = tuple[Tensor, Tensor]
"""Examples and targets of one batch of all members `[E * B, ...]`, in pinned memory."""
StepOrder = tuple[Tensor, PinnedBatch | None]
"""Example indices of a step `[E, M, B]`, and its first batch if already gathered."""
BatchSource = tuple[Tensor, Tensor, Tensor]
"""Examples and targets on the device, and the indices of a batch `[E, B]` into them."""


@dataclass(frozen=True, slots=True, eq=False)
class _NextStep:
    """What was computed ahead for a step."""

    step: int
    order_EMB: Tensor | None
    bits_EMB: Tensor | None
    stream: torch.cuda.Stream | None
    """Stream it was queued on; None on a CPU."""


class SharedBatchIterator:
    """Iterates over batches of all members at once, from shared data."""

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
        member_ids: Ints | None = None,
    ) -> None:
        """`mean` and `std`: one value, or one per channel, in units of the examples.

        uint8 and floating-point examples are normalised in float32 and returned as `dtype`; other
        integers are token ids and returned unchanged. Channels are axis 1.

        `placement`: `stream` keeps the data in host memory. No placement synchronises the device.
        `member_ids`: numbers of the members in the names of their streams; None: their indices.
        """
        _check_sizes(members, batch_size, batches_per_step, mean, std)
        _check_data(examples, targets, batch_size, augmentation)
        self.device = torch.device(device)
        self.members, self.batch_size, self.batches_per_step = members, batch_size, batches_per_step
        self.seed, self.round, self.augmentation, self.dtype = seed, 0, augmentation, dtype
        self.member_ids = np.arange(members) if member_ids is None else np.asarray(member_ids)
        real = np.issubdtype(examples.dtype, np.floating)
        own = np.array(examples, dtype=np.float32 if real else examples.dtype)
        self.placement = _choose_placement(placement, own.nbytes, self.device)
        self._data_device = self.device if self.placement == "device" else torch.device("cpu")
        """Device of examples and permutations."""
        self.examples = torch.from_numpy(own).to(self._data_device)
        self.targets = torch.from_numpy(np.array(targets)).to(self._data_device)
        self.used = len(targets)
        """Examples that batches are made of: the first ones."""
        shape = (-1, *(1,) * (examples.ndim - 2))
        self._mean = torch.tensor(mean, dtype=torch.float32).view(shape).to(self.device)
        self._std = torch.tensor(std, dtype=torch.float32).view(shape).to(self.device)
        self._mean_std_C = self._fused_kernel_stats(len(mean), len(std))
        """Mean and std per channel; None if the fused kernel is not used."""
        self._copy_stream: torch.cuda.Stream | None = None
        """Stream for host-to-device copies; None if data are on the device."""
        self._all_rows_EB = torch.arange(members * batch_size, device=self.device).view(members, -1)
        """Indices of a streamed batch into its own examples: all of them."""
        if self.placement == "stream":
            self._copy_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._epochs: dict[int, Tensor] = {}
        self._own_epochs = _OwnEpochs()
        self._prefetched: tuple[int, Future[StepOrder]] | None = None
        self.queues_next = self.device.type == "cuda"
        """Whether the next step is prepared on the device after the batches of a step."""
        self._next: _NextStep | None = None
        self._process = os.getpid()
        self._pool = (
            ThreadPoolExecutor(1, "esper-order") if self._data_device.type == "cpu" else None
        )

    def _fused_kernel_stats(self, means: int, stds: int) -> tuple[Tensor, Tensor] | None:
        """Mean and std per channel if the fused kernel supports the data, else None.

        It supports images with one label each, and one or per-channel means and stds.
        """
        images = self.examples.ndim == 4 and self.targets.ndim == 1
        if not (images and can_use_kernels(self._mean)):
            return None
        channels = self.examples.shape[1]
        known = self.examples.dtype in (torch.uint8, torch.float32)
        if not known or not {means, stds} <= {1, channels}:
            return None
        mean_C, std_C = (t.flatten().expand(channels) for t in (self._mean, self._std))
        return mean_C.contiguous(), std_C.contiguous()

    def reset(self, round_index: int) -> None:
        """Start an episode with the orders and augmentations of the given round."""
        if self._prefetched is not None and os.getpid() == self._process:
            self._prefetched[1].cancel()
            if not self._prefetched[1].cancelled():
                self._prefetched[1].result()
        self.round, self._prefetched, self._next = round_index, None, None
        self._epochs.clear()
        self._own_epochs = _OwnEpochs()

    def replace_data(self, data: RoundData, used: int) -> None:
        """Overwrite the data in place, between episodes; batches use the first `used` examples."""
        examples, targets = data.part("train", self._data_device)
        self.examples.copy_(examples)
        self.targets.copy_(targets)
        self.used, self._next = used, None

    def step(
        self, step: int, out: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one step: inputs `[E, B, ...]` and targets `[E, B, ...]`.

        `out`: tensors of those shapes that every batch is written to in turn. On a GPU each batch
        is made on the stream that is current when it is requested.
        """
        prepared, self._next = self._next, None
        if prepared is None or (prepared.step, prepared.stream) != (step, self._stream()):
            prepared = _NextStep(step, None, self._bits_of_step(step), self._stream())
        order_EMB, first = prepared.order_EMB, None
        if order_EMB is None:
            order_EMB, first = self._order_of_step(step)
        return self._make_batches(order_EMB, first, prepared.bits_EMB, out, step + 1)

    def batches(
        self, first_E: Ints, count: int, out: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `count` batches; member e continues after its first `first_E[e]` batches."""
        if (first_E == first_E[0]).all():
            order = self._make_order(int(first_E[0]), count)
        else:
            order = self._make_own_order(first_E, count)
        return self._make_batches(order, None, self._augmentation_bits(first_E, count), out)

    def _make_batches(
        self,
        order_EMB: Tensor,
        first: PinnedBatch | None,
        bits_EMB: Tensor | None,
        out: tuple[Tensor, Tensor] | None,
        next_step: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Make the batches of an order; `first`: the first one, if already gathered.

        `next_step`: the step to prepare when all are taken.
        """
        count = order_EMB.shape[1]
        for batch in range(count):
            bits_EB = None if bits_EMB is None else bits_EMB[:, batch]
            source = self.examples, self.targets, order_EMB[:, batch]
            if self._copy_stream is not None:
                batch_data = first if batch == 0 else None
                batch_data = batch_data or self._gather(source[2], self._pinned_buffers())
                source = self._copy_to_device(batch_data, self._copy_stream)
            if self._mean_std_C is not None:
                yield self._make_batch_fused(source, bits_EB, self._mean_std_C, out)
                continue
            x, targets = self._make_batch(source, bits_EB)
            yield (x, targets) if out is None else (out[0].copy_(x), out[1].copy_(targets))
        if next_step is not None and self.queues_next:
            order = self._step_order(next_step) if self._pool is None else None
            bits = self._bits_of_step(next_step)
            self._next = _NextStep(next_step, order, bits, self._stream())

    def _stream(self) -> torch.cuda.Stream | None:
        return torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

    def _make_batch(self, source: BatchSource, bits_EB: Tensor | None) -> tuple[Tensor, Tensor]:
        examples, targets_N, index_EB = source
        # Whole rows at a time; indexing by `index_EB` would copy element by element on a CPU.
        rows = examples.index_select(0, index_EB.flatten())
        x, targets = rows.view(*index_EB.shape, *examples.shape[1:]), targets_N[index_EB]
        if bits_EB is not None:
            x = self._augment(x, bits_EB)
        if x.dtype == torch.uint8 or x.dtype.is_floating_point:
            x = x.to(torch.float32).sub_(self._mean).div_(self._std).to(self.dtype)
        return x, targets

    def _make_batch_fused(
        self,
        source: BatchSource,
        bits_EB: Tensor | None,
        mean_std_C: tuple[Tensor, Tensor],
        out: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        from esper.kasmina.ops.kernels.batches import gather_batch

        padding = CROP_PADDING if self.augmentation == "crop_flip" else 0
        return gather_batch(
            *source, bits_EB, *mean_std_C, padding=padding, dtype=self.dtype, out=out
        )

    # ---- streamed data --------------------------------------------------------------------

    def _pinned_buffers(self) -> PinnedBatch:
        """Pinned memory for a batch; torch reuses it only after pending copies are done."""
        examples, targets = (
            torch.empty(
                self._all_rows_EB.numel(), *part.shape[1:], dtype=part.dtype, pin_memory=True
            )
            for part in (self.examples, self.targets)
        )
        return examples, targets

    def _gather(self, index_EB: Tensor, buffers: PinnedBatch) -> PinnedBatch:
        for part, gathered in zip((self.examples, self.targets), buffers, strict=True):
            torch.index_select(part, 0, index_EB.flatten(), out=gathered)
        return buffers

    def _copy_to_device(self, gathered: PinnedBatch, stream: torch.cuda.Stream) -> BatchSource:
        """Copy a batch to the device on `stream`, overlapping work already queued on the current
        stream; later work on the current stream waits for the copy."""
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(stream):
            examples, targets = (part.to(self.device, non_blocking=True) for part in gathered)
        current.wait_stream(stream)
        for part in (examples, targets):
            part.record_stream(current)  # keeps the allocator from reusing it too early
        return examples, targets, self._all_rows_EB

    # ---- the order ------------------------------------------------------------------------

    def _order_of_step(self, step: int) -> StepOrder:
        """Return the order of a step. On the CPU, the next step's order is computed in a thread
        during training, and its first batch gathered if data are streamed."""
        if self._pool is None or os.getpid() != self._process:  # a fork has no threads
            return self._step_order(step), None
        if self._prefetched is not None and self._prefetched[0] == step:
            prepared = self._prefetched[1].result()
        else:
            if self._prefetched is not None:
                self._prefetched[1].result()
            prepared = self._step_order(step), None
        buffers = None if self._copy_stream is None else self._pinned_buffers()
        self._prefetched = (step + 1, self._pool.submit(self._prefetch, step + 1, buffers))
        return prepared

    def _prefetch(self, step: int, buffers: PinnedBatch | None) -> StepOrder:
        order_EMB = self._step_order(step)
        return order_EMB, None if buffers is None else self._gather(order_EMB[:, 0], buffers)

    def _step_order(self, step: int) -> Tensor:
        return self._make_order(step * self.batches_per_step, self.batches_per_step)

    def _make_order(self, first_batch: int, count: int) -> Tensor:
        """Order of `count` batches if all members are at the same one."""
        examples = self.used
        length = count * self.batch_size
        first = first_batch * self.batch_size
        last = first + length
        epochs = range(first // examples, -(-last // examples))
        self._epochs = {e: self._epochs[e] for e in epochs if e in self._epochs} | {
            e: self._permutation(e) for e in epochs if e not in self._epochs
        }
        orders = [self._epochs[e] for e in epochs]
        joined = orders[0] if len(orders) == 1 else torch.cat(orders, dim=1)
        start = first - epochs[0] * examples
        part = joined[:, start : start + length]
        return part.reshape(self.members, count, self.batch_size)

    def _make_own_order(self, first_E: Ints, count: int) -> Tensor:
        """Order of `count` batches if every member is at its own one."""
        place_EL = first_E[:, None] * self.batch_size + np.arange(count * self.batch_size)
        epoch_EL, within_EL = np.divmod(place_EL, self.used)
        first_epoch_E = epoch_EL[:, 0]
        spanned = int((epoch_EL[:, -1] - first_epoch_E).max()) + 1
        epoch_EJ = first_epoch_E[:, None] + np.arange(spanned)
        order_EJN = self._own_epochs.of(epoch_EJ, self._permutations)
        index_EL = (epoch_EL - first_epoch_E[:, None]) * self.used + within_EL
        index = upload(index_EL, self._data_device)
        order_EL = order_EJN.flatten(1).gather(1, index)
        return order_EL.view(self.members, count, self.batch_size)

    def _permutation(self, epoch: int) -> Tensor:
        """`[E, N]`: the permutations of one epoch of all members."""
        everyone = np.arange(self.members)
        return self._permutations(everyone, np.full_like(everyone, epoch))

    def _permutations(self, members: Ints, epochs: Ints) -> Tensor:
        """Example indices of (member, epoch) pairs, sorted by a hash of (stream, example)."""
        names = self.member_ids[members]
        keys = stream_keys(self.seed, "round", self.round, "member", names, "epoch", epochs)
        return permutations(keys, self.used, self._data_device)

    # ---- augmentation ---------------------------------------------------------------------

    def _bits_of_step(self, step: int) -> Tensor | None:
        first_E = np.full(self.members, step * self.batches_per_step)
        return self._augmentation_bits(first_E, self.batches_per_step)

    def _augmentation_bits(self, first_E: Ints, count: int) -> Tensor | None:
        """`[E, M, B]`: 64 random bits for each image of the next batches; None: not augmented."""
        if self.augmentation == "none":
            return None
        member_E1 = self.member_ids[:, None]
        batch_EM = first_E[:, None] + np.arange(count)
        keys_EM = stream_keys(
            self.seed, "round", self.round, "member", member_E1, "augment", batch_EM
        )
        words = random_bits(keys_EM.ravel(), self.batch_size, self.device)
        return words.view(self.members, count, self.batch_size)

    def _augment(self, x_EBCHW: Tensor, bits_EB: Tensor) -> Tensor:
        """Random horizontal flip; for `crop_flip` also a random shift by up to CROP_PADDING."""
        flip_EB = (bits_EB & 1).bool()
        x = torch.where(flip_EB[..., None, None, None], x_EBCHW.flip(-1), x_EBCHW)
        if self.augmentation == "flip":
            return x
        choices = 2 * CROP_PADDING + 1
        down_EB = (bits_EB >> 8 & 0xFFFF) % choices
        right_EB = (bits_EB >> 24 & 0xFFFF) % choices
        return _shift(x, down_EB, right_EB)


class _OwnEpochs:
    """Permutations of the epochs that members are in, kept while they are."""

    def __init__(self) -> None:
        self._epoch_EJ: Ints = np.zeros((0, 0), dtype=np.int64)
        self._order_EJN: Tensor | None = None

    def of(self, epoch_EJ: Ints, permutations: Callable[[Ints, Ints], Tensor]) -> Tensor:
        """Return `[E, J, N]` for the epochs `[E, J]`; known ones are copied."""
        members, spanned = epoch_EJ.shape
        known_EJ = np.zeros(epoch_EJ.shape, dtype=np.bool_)
        source_EJ = np.zeros_like(epoch_EJ)
        if self._order_EJN is not None:
            same_EJJ = epoch_EJ[:, :, None] == self._epoch_EJ[:, None, :]
            known_EJ, source_EJ = same_EJJ.any(axis=2), same_EJJ.argmax(axis=2)
        new = np.argwhere(~known_EJ)
        fresh = permutations(new[:, 0], epoch_EJ[~known_EJ]) if len(new) else None
        if self._order_EJN is None:
            assert fresh is not None
            order_EJN = fresh.view(members, spanned, -1)
        else:
            row_E1 = np.arange(members)[:, None] * self._order_EJN.shape[1]
            taken = upload((row_E1 + source_EJ).ravel(), self._order_EJN.device)
            flat = self._order_EJN.flatten(0, 1).index_select(0, taken)
            if fresh is not None:
                place = upload(np.flatnonzero(~known_EJ), flat.device)
                flat.index_copy_(0, place, fresh)
            order_EJN = flat.view(members, spanned, -1)
        self._epoch_EJ, self._order_EJN = epoch_EJ, order_EJN
        return order_EJN


def _check_sizes(
    members: int,
    batch_size: int,
    batches_per_step: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> None:
    if min(members, batch_size, batches_per_step) < 1:
        raise EsperError(
            f"members={members}, batch_size={batch_size}, batches_per_step={batches_per_step}: "
            f"all must be 1 or more"
        )
    if min(std) <= 0 or not np.isfinite((*mean, *std)).all():
        raise EsperError(f"mean={tuple(mean)}, std={tuple(std)}: must be finite, and std above 0")


def _check_data(
    examples: npt.NDArray[np.generic],
    targets: npt.NDArray[np.int64],
    batch_size: int,
    augmentation: Augmentation,
) -> None:
    if len(examples) != len(targets):
        raise EsperError(
            f"{len(examples)} examples but {len(targets)} targets: pass one target per example"
        )
    if batch_size > len(examples):
        raise EsperError(
            f"batch_size={batch_size}: the data has {len(examples)} examples; lower it"
        )
    if augmentation not in AUGMENTATIONS:
        raise unknown_name("augmentation", augmentation, AUGMENTATIONS)
    if augmentation != "none" and examples.ndim != 4:
        raise EsperError(
            f"augmentation {augmentation!r} needs images [N, C, H, W], but the examples have "
            f"shape {examples.shape}: use 'none'"
        )


def _choose_placement(
    wanted: DataPlacement, size_bytes: int, device: torch.device
) -> Literal["device", "stream"]:
    """Resolve `auto`: on the device if the data fit in `DEVICE_SHARE` of its free memory."""
    if wanted not in PLACEMENTS:
        raise unknown_name("data placement", wanted, PLACEMENTS)
    if device.type == "cpu":
        return "device"  # host memory is device memory
    if wanted != "auto":
        return wanted
    free, _ = torch.cuda.mem_get_info(device)
    return "device" if size_bytes <= DEVICE_SHARE * free else "stream"


def _shift(x_EBCHW: Tensor, down_EB: Tensor, right_EB: Tensor) -> Tensor:
    """Crop the zero-padded images to their old size, at offset (`down`, `right`)."""
    height, width = x_EBCHW.shape[-2:]
    padded = F.pad(x_EBCHW, (CROP_PADDING,) * 4)
    rows = down_EB[..., None] + torch.arange(height, device=x_EBCHW.device)
    columns = right_EB[..., None] + torch.arange(width, device=x_EBCHW.device)
    channels = x_EBCHW.shape[2]
    row_index = rows[:, :, None, :, None].expand(-1, -1, channels, -1, padded.shape[-1])
    tall = padded.gather(3, row_index)
    column_index = columns[:, :, None, None, :].expand(-1, -1, channels, height, -1)
    return tall.gather(4, column_index)
