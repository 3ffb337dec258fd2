"""What `esper.grow` returns: the frontier of score against size, and the pick under the budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from esper.growing.folder import RESULT, GrowInfo, read_info, read_table
from esper.growing.frontier_table import FrontierTable, frontier_table
from esper.growing.runs import Origin, Recipe, Table
from esper.growing.stored import Model, StoredNetworks, read_script
from esper.kasmina.export.export import export_model, require_suffix
from esper.leyline.codec import LATER, read_record
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate
from esper.leyline.variants import read_variant
from esper.storage.sealed_json import read_document


@dataclass(frozen=True, slots=True)
class NetworkRecord:
    """One network of the frontier, as it is kept in the run folder."""

    number: int
    variant: str
    """Width and depth as multiples of the model's, as "x2 d0.5"; empty for the model's own."""
    topology: tuple[str, ...]
    """Blueprint of each slot, "" for an empty one."""
    origin: Origin
    recipe: Recipe
    params: int
    macs: int
    val_score: float
    test_score: float
    test_se: float
    """Standard error of the test score over samples."""
    runs: float
    """Compute that this network took to train, in training runs of the model."""
    cut: bool = False
    """Whether it was stopped before the end of its run."""
    seed: int = 0
    """Of its run: initial weights, order of the samples, dropout, augmentation."""
    refit: bool = False
    """Whether its weights, and so the test score, are those of the same run on train and val
    together; the validation score is that of the run on train."""
    latency: float = 0.0
    """Milliseconds for one sample, the median; 0: not measured."""
    latency_low: float = 0.0
    latency_high: float = 0.0
    """Half of all samples took between these."""


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """The outcome of a run."""

    networks: tuple[NetworkRecord, ...]
    """The frontier, smallest first."""
    host: NetworkRecord
    """The model as it was given, trained on the same batches."""
    others: tuple[NetworkRecord, ...]
    """Every other network that was trained to its end; test not judged."""
    pick: int
    """Number of the network with the best validation score within the budget."""
    verdict: str
    runs: float
    seconds: float
    complete: bool
    """Whether the search came to its end."""
    ended: str = ""
    """Why it came to its end."""
    gain: Estimate | None = field(default=None, metadata=LATER)
    """How much better the pick is than the model as it was given, on the same test samples, with
    its 95 % interval; None if it is that model."""


@dataclass(frozen=True, eq=False)
class GrownNetwork:
    """A network of the frontier."""

    record: NetworkRecord
    info: GrowInfo
    _result: GrowResult = field(repr=False)

    @property
    def params(self) -> int:
        """Trainable parameters."""
        return self.record.params

    @property
    def macs(self) -> int:
        """Multiply-accumulates for one sample."""
        return self.record.macs

    @property
    def test_score(self) -> float:
        """Score on the test part."""
        return self.record.test_score

    @property
    def val_score(self) -> float:
        """Score on the validation part."""
        return self.record.val_score

    @property
    def recipe(self) -> Recipe:
        """How it was trained."""
        return self.record.recipe

    @property
    def width(self) -> float:
        """Its width as a multiple of the given model's."""
        return read_variant(self.record.variant)[0]

    @property
    def depth(self) -> float:
        """Its depth as a multiple of the given model's."""
        return read_variant(self.record.variant)[1]

    @property
    def model(self) -> nn.Module:
        """A plain module, in eval mode, that takes what the data yield."""
        return self._result._model(self.record)

    @property
    def example(self) -> Any:
        """A batch of its inputs."""
        return self._result._example(self.record)

    @property
    def places(self) -> tuple[str, ...]:
        """Where seeds could grow, in order."""
        return self.info.variant_places[self.info.variants.index(self.record.variant)]

    @property
    def seeds(self) -> dict[str, str]:
        """Where it was grown -> blueprint."""
        pairs = zip(self.places, self.record.topology, strict=True)
        return {place: name for place, name in pairs if name}

    def code(self) -> str:
        """A plain PyTorch script that trains it again without Esper, to about the same score."""
        return self._result._code(self.record)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the network: `.pt2` (torch.export), `.onnx`, or `.safetensors` (weights only)."""
        target = Path(path)
        require_suffix(target)
        export_model(self.model, self.example, target)
        return target


class GrowResult:
    """The frontier of a run: networks from small to large, none of which another one beats."""

    def __init__(
        self,
        record: ResultRecord,
        info: GrowInfo,
        folder: Path,
        load: Callable[[NetworkRecord], nn.Module],
        example: Callable[[NetworkRecord], Any],
        code: Callable[[NetworkRecord], str],
    ) -> None:
        """`load`: makes a network; `example`: returns a batch of its inputs; `code`: its script."""
        self.record, self.info, self.folder = record, info, folder
        self._load, self._example, self._code = load, example, code
        self._models: dict[int, nn.Module] = {}

    @staticmethod
    def load(
        folder: str | os.PathLike[str], model: Model | None = None, trust: bool = False
    ) -> GrowResult:
        """Read the result of a run from its folder, which may be a stranger's: nothing in it runs.

        `model`: the one that was grown, or what builds it; only networks with layers of your own
        need it. `trust`: read those as `.pt2` files instead, which can run code.
        """
        path = Path(folder)
        info = read_info(path)
        if not (path / RESULT).is_file():
            raise EsperError(
                f"{path} has no {RESULT}: the run has not finished; resume it with "
                f"esper.grow(..., resume={str(path)!r})"
            )
        record = read_record(ResultRecord, read_document(path / RESULT), str(path / RESULT))
        hosts = (record.host,) if info.host_fits else ()
        if record.pick not in {one.number for one in (*record.networks, *hosts)}:
            raise EsperError(f"{path / RESULT} is damaged: its pick {record.pick} is no network")
        stored = StoredNetworks(path, info, model, trust)
        return GrowResult(
            record,
            info,
            path,
            stored.load,
            stored.example,
            lambda network: read_script(path, network.number),
        )

    def _network(self, record: NetworkRecord) -> GrownNetwork:
        return GrownNetwork(record, self.info, self)

    def _model(self, record: NetworkRecord) -> nn.Module:
        if record.number not in self._models:
            self._models[record.number] = self._load(record)
        return self._models[record.number]

    @property
    def frontier(self) -> list[GrownNetwork]:
        """All networks within the budget that none beats, smallest first."""
        return [self._network(record) for record in self.record.networks]

    @property
    def host(self) -> GrownNetwork:
        """The model as it was given, trained on the same batches."""
        return self._network(self.record.host)

    @property
    def best(self) -> GrownNetwork:
        """The pick: best validation score within the budget."""
        return next(n for n in (*self.frontier, self.host) if n.record.number == self.record.pick)

    @property
    def model(self) -> nn.Module:
        """The pick as a plain module, in eval mode."""
        return self.best.model

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        return self.record.verdict

    def table(self) -> Table:
        """All runs of the search."""
        return read_table(self.folder)

    def pick(self, params: float | None = None, macs: float | None = None) -> GrownNetwork:
        """The network with the best validation score within these limits and those of the budget.

        So a model that was given above the budget is never picked.
        """
        candidates = [*self.frontier, self.host] if self.info.host_fits else self.frontier
        within = [
            network
            for network in candidates
            if (params is None or network.params <= params)
            and (macs is None or network.macs <= macs)
        ]
        if not within:
            smallest = min(candidates, key=lambda n: n.params)
            raise EsperError(
                f"no network within params={params}, macs={macs}: the smallest has "
                f"{smallest.params} parameters and {smallest.macs} MACs"
            )
        return max(within, key=lambda network: self.info.rank(network.val_score, network.params))

    def encode(self, rows: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Inputs of the networks for new rows of a table, encoded as train was.

        One tensor; or numbers and codes, for a model of two inputs: `model(*result.encode(rows))`.
        """
        if self.info.encoding is None:
            raise EsperError(
                "encode: the search was made without categorical=, so networks take the tensors "
                "that the data yield"
            )
        return self.info.encoding.encode(rows)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a self-contained HTML page; returns its path."""
        from esper.karn.report.page import write_page

        return write_page(self.folder, None if path is None else Path(path))

    def overview(self) -> FrontierTable:
        """The frontier and the model as given as a table for people."""
        networks, host = self.frontier, self.host
        if all(one.record.number != host.record.number for one in networks):
            networks.append(host)
        return frontier_table(networks, self.record.pick, host.record.number)

    def _repr_html_(self) -> str:
        from esper.growing.notebook import notebook_view

        return notebook_view(self)

    def __str__(self) -> str:
        lines = self.overview().lines()
        return "\n".join([self.verdict, "", *lines, "", f"run folder: {self.folder}"])

    __repr__ = __str__
