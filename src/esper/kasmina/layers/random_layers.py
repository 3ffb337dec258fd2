"""Reproducible dropout and other random layers: one random stream per row.

Torch's layers draw from a global generator, so every number would depend on all earlier draws.
Inside `RowDraws` every random operation of torch returns a hash of

    (row key, site, number of the call at that site, index of the element in the row)

where the row key is (seed, round, member, row, training pass) and the site is a segment of the host
or a blueprint in a slot. A row's numbers are therefore the same with every executor and independent
of other rows, and only a counter has to be saved to resume.

`RowDraws` intercepts the operations that composite ones (dropout2d, gumbel_softmax, attention) are
made of, below autograd and vmap, where the rows of a vmapped module are the first axis. It is only
entered for sites known to draw (`random_probe`); other sites have no overhead.

Shape letters: R rows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from esper.device import rng
from esper.device.shards import BatchShare
from esper.kasmina.rows.rows import FROM_INPUT, RowTable
from esper.leyline.arrays import Ints
from esper.leyline.streams import stream_keys


@dataclass(frozen=True, slots=True)
class Site:
    """A part of the network that draws random numbers in training."""

    name: str
    plain_attention: bool = False
    """torch's fused attention draws its dropout inside a kernel: use the composite one."""


def row_keys(seed: int, round_index: int, table: RowTable, member_ids: Ints) -> Ints:
    """Return a key per row, independent of the other rows (except repetitions of it).

    `member_ids`: numbers of the members in the names of streams.
    """
    begin_R = table.start_R - FROM_INPUT
    again_R = _repetitions(table.member_R * (table.alpha_RS.shape[1] + 1) + begin_R)
    member_R = member_ids[table.member_R]
    path = ("round", round_index, "member", member_R, "row", begin_R, again_R)
    return stream_keys(seed, "random layers", *path).view(np.int64)


def _repetitions(code_R: Ints) -> Ints:
    """Return how often each value occurred before."""
    order = np.argsort(code_R, kind="stable")
    ordered = code_R[order]
    place = np.arange(len(order))
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    out = np.empty_like(place)
    out[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return out


class RowStreams:
    """Random streams of all rows of one pass."""

    def __init__(self, key_R: Tensor) -> None:
        self.key_R = key_R
        self._calls: dict[tuple[str, int], Tensor] = {}

    def call_keys(self, site: str, call: int) -> Tensor:
        """Return the keys of one call at a site; cached for rows that run one after the other."""
        if self.key_R.is_cuda:  # rows may run concurrently on different CUDA streams
            return rng.derive_keys(self.key_R, _call_id(site, call))
        if (site, call) not in self._calls:
            self._calls[site, call] = rng.derive_keys(self.key_R, _call_id(site, call))
        return self._calls[site, call]


@lru_cache(maxsize=4096)
def _call_id(site: str, call: int) -> int:
    return int(stream_keys(0, site, "call", call).view(np.int64))


def row_draws(
    site: Site | None,
    streams: RowStreams | None,
    rows: slice | Tensor,
    stacked: bool = True,
    share: BatchShare | None = None,
) -> contextlib.AbstractContextManager[object]:
    """Return the context in which a site computes some rows; a null context if nothing is drawn.

    `rows`: a slice or an index tensor. `share`: the part of the batch that is computed here.
    """
    if site is None or streams is None:
        return contextlib.nullcontext()
    return RowDraws(streams, site, rows, stacked, share)


class RowDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context in which random operations draw from the rows' streams.

    `stacked`: rows are the first axis of all draws (under vmap); otherwise there is one row.
    `share`: numbers are those of these samples in the whole batch, where the first axis of a draw
    is the batch.
    """

    def __init__(
        self,
        streams: RowStreams,
        site: Site,
        rows: slice | Tensor,
        stacked: bool,
        share: BatchShare | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.site = site
        self.stacked = stacked
        self.calls = 0
        """Calls served so far."""
        self._streams = streams
        self._rows = rows
        self._share = share
        self._context = contextlib.ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False avoids an import of seconds, and a wrapper around every operation."""
        return False

    def __enter__(self) -> Self:
        if self.site.plain_attention:
            self._context.enter_context(sdpa_kernel(SDPBackend.MATH))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._context.close()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        draw = OPERATIONS.get(func)
        if draw is not None:
            return draw(self, *args, **(kwargs or {}))
        return self.other(func, args, kwargs or {})

    def other(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run any other operation; unknown random ones use torch's generator."""
        return func(*args, **kwargs)

    def words(self, like: Tensor, by_sample: bool = True) -> Tensor:
        """Return fresh 32-bit words (int32) in the shape of `like`, contiguous.

        `by_sample`: whether its first axis may be the batch.
        """
        keys_R = self._streams.call_keys(self.site.name, self.calls)
        index = self._rows
        keys_R = keys_R.index_select(0, index) if isinstance(index, Tensor) else keys_R[index]
        self.calls += 1
        shape, rows = like.shape, len(keys_R)
        if self.stacked and shape[:1] != (rows,):
            raise RuntimeError(
                f"random numbers of shape {tuple(shape)} are not drawn row by row ({rows} rows)"
            )
        count = math.prod(shape[1:] if self.stacked else shape)
        first = 0
        if self._share is not None and by_sample and shape and not shape[0] % self._share.computed:
            first = self._share.first * (count // self._share.computed)
        return rng.random_words(keys_R, count, first).view(shape).to(like.device)


# ---- kinds of numbers: what draws, a tensor of their shape and device, parameters -----------

_DIGITS: Final = {torch.float16: 11, torch.bfloat16: 8}


def _uniform(draws: RowDraws, like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform in [low, high), with as many bits as the dtype holds, so that none rounds up."""
    digits = _DIGITS.get(like.dtype, 24)
    bits = (draws.words(like) >> (32 - digits)).bitwise_and_((1 << digits) - 1)
    return bits.to(like.dtype).mul_((high - low) * 2.0**-digits).add_(low)


def _open_uniform(draws: RowDraws, like: Tensor) -> Tensor:
    """Uniform float32 in (0, 1)."""
    return rng.to_unit_interval((draws.words(like) >> 8).bitwise_and_((1 << 24) - 1))


def _below(draws: RowDraws, like: Tensor, probability: float | Tensor = 0.5) -> Tensor:
    """True with the given probability."""
    if isinstance(probability, Tensor):
        return _open_uniform(draws, like) < probability.to(like.device)
    bits, bound = draws.words(like), round(probability * 2**32) - 2**31
    return torch.ones_like(bits, dtype=torch.bool) if bound >= 2**31 else bits < bound


def _normal(draws: RowDraws, like: Tensor, mean: Any = 0.0, std: Any = 1.0) -> Tensor:
    out: Tensor = torch.special.ndtri(_open_uniform(draws, like)) * std + mean
    return out


def _exponential(draws: RowDraws, like: Tensor, rate: float = 1.0) -> Tensor:
    return _open_uniform(draws, like).log() / -rate


def _integers(draws: RowDraws, like: Tensor, low: int, high: int | None = None) -> Tensor:
    """Integers in [low, high), or [0, low) if only one is given."""
    low, high = (0, low) if high is None else (low, high)
    return (draws.words(like).to(torch.int64) & 0xFFFFFFFF) % (high - low) + low


# ---- torch's random operations ------------------------------------------------------------

_aten: Final = torch.ops.aten
_Kind = Callable[..., Tensor]


def _filling(kind: _Kind) -> _Kind:
    """`x.kind_(*parameters)`."""

    def draw(draws: RowDraws, x: Tensor, *parameters: Any, **_: Any) -> Tensor:
        return x.copy_(kind(draws, x, *parameters))

    return draw


def _like(kind: _Kind) -> _Kind:
    """`kind_like(x, *parameters)`."""

    def draw(
        draws: RowDraws,
        x: Tensor,
        *parameters: Any,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        memory_format: torch.memory_format | None = None,
        **_: Any,
    ) -> Tensor:
        layout = memory_format or torch.preserve_format
        out = torch.empty_like(x, dtype=dtype, device=device, memory_format=layout)
        return out.copy_(kind(draws, out, *parameters))

    return draw


def _factory(kind: _Kind, default: torch.dtype | None = None) -> _Kind:
    """`kind(*parameters, size)`."""

    def draw(
        draws: RowDraws,
        *parameters: Any,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        **_: Any,
    ) -> Tensor:
        *parameters, size = parameters  # type: ignore[assignment]
        out = torch.empty(tuple(size), dtype=dtype or default, device=device)
        return out.copy_(kind(draws, out, *parameters))

    return draw


def _bernoulli(draws: RowDraws, x: Tensor, p: float | None = None, **_: Any) -> Tensor:
    """Bernoulli with probabilities x, or with probability p in the shape of x."""
    return torch.empty_like(x).copy_(_below(draws, x, x if p is None else p))


def _normal_around(draws: RowDraws, mean: Any, std: Any = 1.0, **_: Any) -> Tensor:
    """`torch.normal` with a tensor as mean, std or both."""
    out = torch.empty_like(mean + std)
    return out.copy_(_normal(draws, out, mean, std))


def _native_dropout(
    draws: RowDraws, x: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    """Return (output, mask), as autograd expects."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = _below(draws, x, 1.0 - p)
    return x * kept * (0.0 if p == 1 else 1.0 / (1.0 - p)), kept


def _rrelu(
    draws: RowDraws,
    x: Tensor,
    noise: Tensor,
    lower: float = 1.0 / 8.0,
    upper: float = 1.0 / 3.0,
    training: bool = False,
    generator: object = None,
) -> Tensor:
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    noise.copy_(torch.where(x <= 0, _uniform(draws, x, lower, upper), 1.0))
    return x * noise


def _rrelu_(draws: RowDraws, x: Tensor, *parameters: Any) -> Tensor:
    return x.copy_(_rrelu(draws, x, *parameters))


def _permutation(
    draws: RowDraws,
    n: int,
    dtype: torch.dtype | None = torch.int64,
    device: torch.device | None = None,
    **_: Any,
) -> Tensor:
    if draws.stacked:  # vmap runs row after row and does not say which
        raise RuntimeError("torch.randperm is not drawn row by row under vmap")
    order = draws.words(torch.empty(n, device=device), by_sample=False).argsort(stable=True)
    return order.to(dtype or torch.int64)


OPERATIONS: Final[dict[Any, Callable[..., Any]]] = {
    _aten.bernoulli.default: _bernoulli,
    _aten.bernoulli.p: _bernoulli,
    _aten.bernoulli_.float: _filling(_below),
    _aten.bernoulli_.Tensor: _filling(_below),
    _aten.native_dropout.default: _native_dropout,
    _aten.rand.default: _factory(_uniform),
    _aten.rand_like.default: _like(_uniform),
    _aten.uniform_.default: _filling(_uniform),
    _aten.randn.default: _factory(_normal),
    _aten.randn_like.default: _like(_normal),
    _aten.normal_.default: _filling(_normal),
    _aten.normal.float_float: _factory(_normal),
    _aten.normal.Tensor_float: _normal_around,
    _aten.normal.float_Tensor: _normal_around,
    _aten.normal.Tensor_Tensor: _normal_around,
    _aten.exponential_.default: _filling(_exponential),
    _aten.randint.default: _factory(_integers, torch.int64),
    _aten.randint.low: _factory(_integers, torch.int64),
    _aten.randint_like.default: _like(_integers),
    _aten.randint_like.low_dtype: _like(_integers),
    _aten.random_.to: _filling(_integers),
    getattr(_aten.random_, "from"): _filling(_integers),
    _aten.randperm.default: _permutation,
    _aten.rrelu_with_noise.default: _rrelu,
    _aten.rrelu_with_noise_.default: _rrelu_,
}
"""Operations that draw from the rows' streams. Not supported: multinomial, Poisson, binomial,
gamma, Cauchy, geometric, log-normal."""
