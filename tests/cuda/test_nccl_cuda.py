"""Ranks on GPUs: gradients through NCCL, and the controller of one process.

One GPU: a job of one rank that joins its world all the same, so that every message is sent.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.tolaria.runtime import CUBLAS_DETERMINISTIC, CUBLAS_ENV_VAR
from rank_driver import run_ranks

pytestmark = pytest.mark.cuda
MEMBERS = 8
GPUS = torch.cuda.device_count()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CUBLAS_ENV_VAR, CUBLAS_DETERMINISTIC[0])
        out = tmp_path_factory.mktemp("alone")
        (found,) = run_ranks("train", 1, out, envs=MEMBERS, device="cuda")
        yield found


@pytest.mark.skipif(not GPUS, reason="needs a CUDA device")
def test_one_rank_through_nccl_trains_the_controller_of_one_process(alone, tmp_path):
    (rank,) = run_ranks("train", 1, tmp_path, envs=MEMBERS, device="cuda", join=True)
    assert (rank["device"], rank["backend"]) == ("cuda:0", "nccl")
    assert_alike(rank, alone, 1e-6)


@pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices")
def test_two_gpus_train_the_controller_of_one(alone, tmp_path):
    ranks = run_ranks("train", 2, tmp_path, envs=MEMBERS, device="cuda")
    assert [it["device"] for it in ranks] == ["cuda:0", "cuda:1"]
    assert [it["backend"] for it in ranks] == ["nccl"] * 2
    assert ranks[0]["weights"] == ranks[1]["weights"], "bit for bit"
    assert_alike(ranks[0], alone, 1e-3)


def assert_alike(mine, expected, tolerance: float) -> None:
    assert mine["chosen"] == expected["chosen"]
    np.testing.assert_allclose(mine["scores"], expected["scores"], atol=tolerance)
    for name, values in expected["weights"].items():
        np.testing.assert_allclose(mine["weights"][name], values, atol=tolerance, err_msg=name)
