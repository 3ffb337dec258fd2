"""Round events of a run on a GPU hold its utilisation and its memory."""

from __future__ import annotations

import ctypes

import pytest
import torch

from cuda_support import DEVICE, NEEDS_CUDA
from esper.device.nvml import gpu_utilization
from esper.leyline.telemetry import TelemetryEventType
from esper.nissa import MemorySink
from esper.simic.training.vectorized import train_ppo_vectorized
from run_driver import small_run

pytestmark = NEEDS_CUDA


def has_nvml() -> bool:
    try:
        return ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0
    except OSError:
        return False


@pytest.mark.skipif(not has_nvml(), reason="this machine's driver has no NVML")
def test_a_run_records_utilisation_and_memory_of_its_gpu(tmp_path):
    sink = MemorySink()
    train_ppo_vectorized(small_run(2, device="cuda"), run_dir=tmp_path / "run", sinks=[sink])
    found = [one.payload for one in sink.events if one.type is TelemetryEventType.THROUGHPUT]
    assert len(found) == 2
    for one in found:
        assert 0.0 <= one.gpu_utilization <= 1.0
        assert 1e4 < one.gpu_memory < torch.cuda.get_device_properties(DEVICE).total_memory
        assert 0.0 < one.device_share <= 1.0
    assert found[1].gpu_memory >= found[0].gpu_memory


@pytest.mark.skipif(not has_nvml(), reason="this machine's driver has no NVML")
def test_utilisation_rises_with_work_and_waits_for_none_of_it():
    x = torch.randn(8192, 8192, device=DEVICE)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    for _ in range(200):
        x @ x
    done.record()
    seen = [gpu_utilization(DEVICE)]
    assert not done.query(), "reading it waited for the device"
    while not done.query():
        seen.append(gpu_utilization(DEVICE))
    assert max(seen) > 0.5
