"""How long a network takes for one sample on this machine's CPU, in torch or ONNX Runtime."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from esper.device.threads import cpu_threads
from esper.growing.budget import Runtime
from esper.kasmina.export.export import export_model
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.tracing import Inputs
from esper.leyline.errors import EsperError, install_hint

WARM_UP: Final = 5
"""Calls before the first that counts."""
CALLS: Final = 30
"""Calls that count, at least."""
SECONDS: Final = 0.15
"""How long it is called, at least."""
BLOCKS: Final = 3
"""The median of the quietest of so many blocks of calls counts: others may use the machine."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of one sample: the median, and the range that holds half of all calls."""

    median: float
    low: float
    high: float


def measure_latency(
    model: nn.Module, inputs: Inputs, example: Sequence[Tensor], runtime: Runtime, threads: int
) -> Latency:
    """Time a network in eval mode; `example`: its raw inputs for some samples."""
    first = [value[:1].cpu() for value in example]
    with in_mode(model, training=False):
        if runtime == "onnx":
            return _timed(_in_onnx(model, inputs, first, threads))
        with cpu_threads(threads), torch.inference_mode():
            return _timed(lambda: inputs.call(model, first))


def _timed(call: Callable[[], object]) -> Latency:
    for _ in range(WARM_UP):
        call()
    spent = list[float]()
    began = time.perf_counter()
    while len(spent) < CALLS or time.perf_counter() - began < SECONDS:
        before = time.perf_counter()
        call()
        spent.append(1e3 * (time.perf_counter() - before))
    quiet = min(np.array_split(np.array(spent), BLOCKS), key=lambda block: float(np.median(block)))
    low, median, high = (float(value) for value in np.quantile(quiet, (0.25, 0.5, 0.75)))
    return Latency(median, low, high)


def _in_onnx(
    model: nn.Module, inputs: Inputs, first: Sequence[Tensor], threads: int
) -> Callable[[], object]:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise EsperError(
            f"budget latency_runtime=onnx: needs onnxruntime: {install_hint('export')}"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            export_model(model, inputs.raw(first), path)
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    fed = {name: value.numpy() for name, value in zip(names, first, strict=False)}
    return lambda: session.run(None, fed)
