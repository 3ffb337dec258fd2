"""What jobs ask of Ray: a GPU where they compute on one, and the token of the cluster."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from esper.jobs.ray_token import send_token
from esper.jobs.settings import JobSettings
from support import refused


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_job_on_a_gpu_asks_for_one(gpu, device):
    assert JobSettings(on="ray").on_device(device).job_gpus == 1.0
    assert JobSettings(on="ray://head:10001").on_device(device).job_gpus == 1.0


def test_jobs_keep_what_was_asked_for(gpu):
    shared = JobSettings(on="ray", job_gpus=0.25)
    assert shared.on_device("cuda") == shared
    assert JobSettings().on_device("cuda:0") == JobSettings(), "processes share the GPUs"


def test_jobs_on_a_cpu_ask_for_no_gpu(gpu):
    assert JobSettings(on="ray").on_device("cpu").job_gpus is None


def test_a_gpu_by_number_is_refused_because_ray_numbers_them_anew():
    text = refused(lambda: JobSettings(on="ray").on_device("cuda:1"))
    assert (
        text == "--device cuda:1 with --on ray: Ray chooses the GPU of each job; use --device cuda"
    )


@pytest.fixture
def no_token(monkeypatch, tmp_path):
    for name in ("MODE", "TOKEN", "TOKEN_PATH"):
        monkeypatch.setenv(f"RAY_AUTH_{name}", "")
        monkeypatch.delenv(f"RAY_AUTH_{name}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    return tmp_path


def test_without_a_token_nothing_is_set(no_token):
    send_token()
    assert "RAY_AUTH_MODE" not in os.environ


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_of_the_environment_is_sent(no_token, monkeypatch, name):
    monkeypatch.setenv(name, "words")
    send_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_once_ray_is_imported_its_servers_are_not_told_of_a_token(no_token, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "words")
    monkeypatch.setitem(sys.modules, "ray", object())
    send_token()
    assert "RAY_AUTH_MODE" not in os.environ


def test_the_token_file_of_ray_is_sent_unless_the_mode_is_set(no_token, monkeypatch):
    (no_token / ".ray").mkdir()
    (no_token / ".ray" / "auth_token").write_text("words")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    send_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    monkeypatch.delenv("RAY_AUTH_MODE")
    send_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
