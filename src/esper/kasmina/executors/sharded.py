"""Executor of one large network: every segment and every seed under FSDP2 `fully_shard`.

All ranks of a torchrun job run the same rows on the same batches. Each computes its share of the
samples (`device.shards.BatchShare`), then outputs are gathered: losses are those of the whole batch
on every rank, whatever the loss, and gradients of the shares add up. Rows, seeds, shadow rows and
random numbers are those of the loop executor.

Shape letters: R rows, B batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from esper.device.shards import BatchShare, Shards
from esper.kasmina.blueprints.seed_places import Segment
from esper.kasmina.executors.base import ObjectiveOfRows, check_input, set_training
from esper.kasmina.executors.loop import LoopExecutor, LoopRun, joined, rows_by_member
from esper.kasmina.layers.random_layers import RowStreams, Site, row_draws
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.ops.sharded_norm import whole_batch_norms
from esper.kasmina.rows.rows import RowPlan
from esper.kasmina.stacked.network import StackedNetwork
from esper.kasmina.stacked.sharded_store import ShardedStore
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.errors import EsperError

Call = Callable[[Tensor], Tensor]


class ShardedExecutor(LoopExecutor):
    """Runs a plan row by row, each rank on its share of the batch."""

    name = "sharded"

    def __init__(self) -> None:
        super().__init__()
        self._checked: set[str] = set()
        """Buffers that were the same on all ranks after a train batch."""

    def run(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        training: bool,
        key_R: Tensor | None = None,
    ) -> Tensor:
        """Return outputs `[R, B, ...]` of the whole batch."""
        shards, run = self._begin_share(network, x, plan, training, key_R)
        with self._computing(run, shards), _grad_mode():
            mine_RB = torch.stack([run.row(row) for row in range(plan.table.rows)])
            return shards.gather_batch(mine_RB, run.share)

    def train(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        objective: ObjectiveOfRows,
        key_R: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs and losses; a backward pass after each row.

        So the activations of one row are in memory at a time. No row's gradient reaches another.
        """
        shards, run = self._begin_share(network, x, plan, True, key_R)
        rows = plan.table.rows
        outputs, losses = [x] * rows, [x] * rows
        with self._computing(run, shards):
            for rows_M in rows_by_member(plan).values():
                for row in rows_M:
                    out = shards.gather_batch(run.row(row).unsqueeze(0), run.share)
                    loss, part = objective(out, slice(row, row + 1))
                    outputs[row], losses[row] = out.detach(), loss.detach()
                    if part.requires_grad:  # False if the host is frozen and no seed is live
                        part.sum().backward()  # type: ignore[no-untyped-call]
                run.kept.clear()
            for store in run.stores():
                store.collect_gradients()
                self._check_buffers(store, shards)
        return joined(outputs), joined(losses)

    @contextlib.contextmanager
    def _computing(self, run: _ShardedRun, shards: Shards) -> Iterator[None]:
        try:
            with shards.messages(), kernel_scope(kernels=self.kernels):
                yield
        except BaseException:
            for store in run.stores():
                if isinstance(store, ShardedStore):
                    store.drop_units()  # half a pass leaves them in an undefined state
            raise

    def _check_buffers(self, store: ParameterStore, shards: Shards) -> None:
        """Raise if ranks have updated a buffer differently; each is looked at once."""
        kind = type(store.template).__name__
        for name, value in store.fixed.items():
            if (key := f"{kind} {name}") in self._checked:
                continue
            self._checked.add(key)
            number = value.double()
            # SYNC: the first train batch of a host or blueprint
            if bool((shards.least(number) != -shards.least(-number)).any()):
                raise EsperError(
                    f"{kind} updates its buffer {name!r} from the samples of a batch, of which "
                    f"every rank of executor 'sharded' has a share; batch norms alone are computed "
                    f"over all ranks: use executor 'loop'"
                )

    def _begin_share(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        training: bool,
        key_R: Tensor | None,
    ) -> tuple[Shards, _ShardedRun]:
        check_input(network, x)
        set_training(network, training)
        shards = network.shards
        if shards is None:
            raise EsperError(
                "executor 'sharded': this population was built for another executor; build it with "
                "PopulationConfig(executor='sharded')"
            )
        share = shards.share(x.shape[1])
        streams = None if key_R is None else RowStreams(key_R)
        run = _ShardedRun(network, x[:, share.samples], plan, training, streams, share=share)
        return shards, run


@contextlib.contextmanager
def _grad_mode() -> Iterator[None]:
    """Leave inference mode: what FSDP2 allocates in it could never train."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@dataclass(slots=True)
class _ShardedRun(LoopRun):
    """One pass over this rank's share of the batch."""

    share: BatchShare = field(default_factory=lambda: BatchShare(1, 0, 1))

    def __post_init__(self) -> None:
        LoopRun.__post_init__(self)
        self.fused_pairs = {}  # the parameters of a pair are two units

    def row(self, row: int) -> Tensor:
        """Compute one row, from the input or from its start slot."""
        return self._chain(row)

    def _run_segment(self, row: int, segment: Segment, site: Site | None, h: Tensor) -> Tensor:
        def call(x: Tensor) -> Tensor:
            with self._row_context(site, row):
                out: Tensor = segment.module(x)
            return out

        return self._with_host(row, segment, h, call)

    def _with_host(self, row: int, segment: Segment, x: Tensor, call: Call) -> Tensor:
        """Run a segment with its parameters gathered."""
        plan, host = self.plan, self.network.host
        member, shadow = int(plan.table.member_R[row]), bool(plan.table.shadow_R[row])
        keeps = self.training and bool(plan.info.main_R[row])
        return self._gathered(host, segment.module, segment.names, member, shadow, keeps, x, call)

    def _run_store(
        self, store: ParameterStore, row: int, member: int, frozen: bool, keeps: bool, x: Tensor
    ) -> Tensor:
        def call(x: Tensor) -> Tensor:
            with self._row_context(store.site, row):
                out: Tensor = store.template(x)
            return out

        return self._gathered(store, store.template, None, member, frozen, keeps, x, call)

    def _gathered(
        self,
        store: ParameterStore,
        module: nn.Module,
        names: Mapping[str, str] | None,
        member: int,
        frozen: bool,
        keeps: bool,
        x: Tensor,
        call: Call,
    ) -> Tensor:
        """Return `call(x)`, with what a module needs of a store gathered.

        `names`: its names of tensors -> the store's; None: the same.
        """
        assert isinstance(store, ShardedStore), "a sharded network has no others"
        bound, fixed = store.bound(module, names), self._fixed(store, member, keeps)

        def with_parameters(named: dict[str, Tensor], x: Tensor) -> Tensor:
            with (
                bound.binding.holding(bound.state(named | fixed)),
                whole_batch_norms(module, store.shards, self.share),
            ):
                return call(x)

        return store.compute(member, bound.units, x, with_parameters, frozen)

    def _row_context(
        self, site: Site | None, row: int
    ) -> contextlib.AbstractContextManager[object]:
        return row_draws(site, self.streams, slice(row, row + 1), stacked=False, share=self.share)
