"""Which fused blocks (`block.cu`) there are, and how a thread block divides its work.

Shape letters: C channels in, O channels out, H W.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from esper.kasmina.ops.layout import padded_channels

WARPS: Final = 8
"""Warps of a thread block."""
MAX_SHARED: Final = 227 * 1024
"""Shared memory in bytes that a thread block may have on sm_90."""
SHARED_OF_TWO: Final = 113 * 1024
"""Shared memory in bytes at which two thread blocks fit a multiprocessor."""
MAX_CHANNELS: Final = 32
"""More channels take more registers than a thread has; Triton's kernels take those."""
MAX_PARTS: Final = 32
"""Parts of a row backward, each a thread block; the number depends on shape and batch alone, so
that a row's sums do not depend on the number of rows."""
MIN_STEPS: Final = 8
"""Steps of a part backward, if the batch has that many: a part reads its member's weights first and
leaves sums of their gradients."""
SEED_PARTS: Final = 64
"""The same for seeds: few of them have one blueprint, and their blocks follow one another."""
SEED_STEPS: Final = 4
FORWARD_BLOCKS: Final = 1024
"""Thread blocks of a launch forward, about: groups of seeds have few rows, and no sums there depend
on the parts."""
FORWARD_PARTS: Final = (16, 128)
"""Fewest and most parts of a row forward."""
FORWARD_STEPS: Final = 4
"""Steps of a part forward, if the batch has that many."""
MAX_SIDE: Final = 32
"""Images are whole in shared memory."""
TILE: Final = 16
"""Pixels of a tile, the rows of a product."""
PRODUCTS: Final = 8
"""Products whose sums a warp holds at once (tiles times planes out): 32 registers of a thread."""
GRADIENT_PRODUCTS: Final = 9
"""Products of the weight gradient that a warp holds at once, if shares can be made that small."""


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Shape of a convolution 3x3 with group norm."""

    inputs: int
    outputs: int
    height: int
    width: int
    groups: int

    @property
    def stored(self) -> int:
        """Channels of a pixel as stored."""
        return padded_channels(self.inputs)

    @property
    def planes(self) -> tuple[int, int]:
        """Planes of 8 channels, in and out."""
        return _cdiv(self.inputs, 8), _cdiv(self.outputs, 8)

    def line(self) -> str:
        """As in tables: 8->16 at 16x16."""
        return f"{self.inputs}->{self.outputs} at {self.height}x{self.width}"

    def unsupported_reason(self) -> str | None:
        """Return why there is no fused block of this shape; None if there is one."""
        small = (1, 2, 4)
        if self.inputs != 3 and self.inputs not in small and self.inputs % 8:
            return f"{self.inputs} channels in: 1, 2, 3, 4 or a multiple of 8"
        if self.outputs not in small[1:] and self.outputs % 8:
            return f"{self.outputs} channels out: 2, 4 or a multiple of 8"
        if max(self.inputs, self.outputs) > MAX_CHANNELS:
            return f"more than {MAX_CHANNELS} channels"
        if self.groups > 1 and self.outputs % (8 * self.groups):
            return f"{self.groups} groups of {self.outputs} channels: a group is a multiple of 8"
        if max(self.height, self.width) > MAX_SIDE or self.height * self.width < TILE // 2:
            return f"images of {self.height}x{self.width}"
        if plan(self).backward_bytes > MAX_SHARED:
            return f"{plan(self).backward_bytes} bytes of shared memory"
        return None


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """How a thread block divides the work on a shape; constants of `block.cu`."""

    shape: BlockShape
    image_warps: int
    """Warps that share an image."""
    warp_images: int
    """Images of a warp; more than 1 only if an image has one warp."""
    weight_shares: int
    """Shares of the weight gradient, each of one or more warps."""
    forward_blocks: int
    """Thread blocks per multiprocessor to leave registers for."""
    backward_blocks: int

    @property
    def images(self) -> int:
        """Images of a step."""
        return WARPS // self.image_warps * self.warp_images

    @property
    def _tile_bytes(self) -> tuple[int, int, int]:
        """Inputs, gradients, weights."""
        plane = (self.shape.height + 2) * (self.shape.width + 2) * 16 * self.images
        planes_in, planes_out = self.shape.planes
        return plane * planes_in, plane * planes_out, 10 * planes_in * planes_out * 128

    @property
    def _sums(self) -> int:
        return WARPS * self.warp_images * self.shape.groups * 8

    @property
    def forward_bytes(self) -> int:
        """Shared memory of a thread block."""
        x, _, weights = self._tile_bytes
        return 2 * x + weights + self._sums

    @property
    def backward_bytes(self) -> int:
        """Shared memory of a thread block."""
        x, d, weights = self._tile_bytes
        planes_in, planes_out = self.shape.planes
        weight_sums = _cdiv(9 * planes_in, 2) * 16 * planes_out * 8 * 4
        norm_sums = WARPS * 2 * planes_out * 8 * 4
        return max(2 * x + d + weights + self._sums, weight_sums + norm_sums)

    def forward_parts(self, batch: int, rows: int) -> tuple[int, int]:
        """Return the parts of each of `rows` rows of `batch` images, and the steps of a part."""
        fewest, most = FORWARD_PARTS
        return self._divided(batch, min(most, max(fewest, FORWARD_BLOCKS // rows)), FORWARD_STEPS)

    def backward_parts(self, batch: int, few_rows: bool = False) -> tuple[int, int]:
        """Return the parts of a row of `batch` images, and the steps of a part."""
        if few_rows:
            return self._divided(batch, SEED_PARTS, SEED_STEPS)
        return self._divided(batch, MAX_PARTS, MIN_STEPS)

    def _divided(self, batch: int, most: int, least_steps: int) -> tuple[int, int]:
        steps = _cdiv(batch, self.images)
        parts = max(1, min(most, steps // least_steps))
        each = _cdiv(steps, parts)
        return _cdiv(steps, each), each

    def constants(self) -> dict[str, int]:
        """Definitions to compile `block.cu` with."""
        shape = self.shape
        return {
            "CI": shape.inputs, "CS": shape.stored, "CO": shape.outputs, "H": shape.height,
            "W": shape.width, "GROUPS": shape.groups, "WPI": self.image_warps,
            "IPW": self.warp_images, "WK": self.weight_shares,
            "FORWARD_BLOCKS": self.forward_blocks, "BACKWARD_BLOCKS": self.backward_blocks,
            "PLANNED_FORWARD_BYTES": self.forward_bytes,
            "PLANNED_BACKWARD_BYTES": self.backward_bytes,
        }  # fmt: skip


def plan(shape: BlockShape) -> BlockPlan:
    """Divide the work on a shape."""
    tiles = _cdiv(shape.height * shape.width, TILE)
    planes_in, planes_out = shape.planes
    most = max(1, PRODUCTS // planes_out)  # tiles of a warp
    image_warps = 1
    while image_warps < WARPS and _cdiv(tiles, image_warps) > most:
        image_warps *= 2
    warp_images = max(1, most // tiles) if image_warps == 1 else 1
    steps = _cdiv(9 * planes_in, 2)
    shares = 1
    while shares < WARPS and _cdiv(steps, shares) * planes_out > GRADIENT_PRODUCTS:
        shares *= 2
    forward_blocks = 3 if planes_out <= 2 else 2
    found = BlockPlan(shape, image_warps, warp_images, shares, forward_blocks, 2)
    while found.backward_bytes > SHARED_OF_TWO and found.images > 1:
        found = _with_fewer_images(found)
    return found


def _with_fewer_images(found: BlockPlan) -> BlockPlan:
    if found.warp_images > 1:
        return replace(found, warp_images=_cdiv(found.warp_images, 2))
    return replace(found, image_warps=2 * found.image_warps)
