"""What every test runs under; the `conftest.py` of the product and of the lab take it from here."""

from __future__ import annotations

import gc
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from esper.kasmina.executors import choice
from esper.simic.training.runs.kept_members import KeptMembers


def process_settings() -> dict[str, object]:
    """What decides, for all later tests of the process, how torch sums on a CPU."""
    return {
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.get_default_dtype()": torch.get_default_dtype(),
    }


AT_START = process_settings()

UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""A busy machine fails no property."""
settings.register_profile("quick", max_examples=30, **UNHURRIED)
settings.register_profile("slow", max_examples=100, **UNHURRIED)


def pytest_configure(config: pytest.Config) -> None:
    """Properties that say nothing about it are tried with fewer examples by default."""
    settings.load_profile("quick" if "not slow" in config.option.markexpr else "slow")


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the list as slow; `*` stands for any text, `!` takes tests off again."""
    text = (config.rootpath / "tests" / "slow_tests.txt").read_text()
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    listed = matcher([line for line in lines if line[0] != "!"])
    kept = matcher([line[1:] for line in lines if line[0] == "!"])
    for item in items:
        if listed(item.nodeid) and not kept(item.nodeid):
            item.add_marker(pytest.mark.slow)


def matcher(entries: list[str]) -> Callable[[str], bool]:
    """Tells whether a test, or its file, is among the entries."""
    plain = {entry for entry in entries if "*" not in entry}
    patterns = [re.escape(entry).replace(r"\*", ".*") for entry in entries if "*" in entry]
    pattern = re.compile("|".join(patterns))
    return lambda nodeid: (
        not plain.isdisjoint((nodeid, nodeid.split("::")[0]))
        or pattern.fullmatch(nodeid) is not None
    )


def pytest_collection_finish() -> None:
    """Modules and collected tests stay to the end: no garbage collection need look at them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(autouse=True, scope="session")
def no_side_work():
    """Plain networks and second processes take time in every run;
    tests/simic/training/test_kept_members.py and tests/compare/test_baseline_process.py restore
    them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptMembers, "store_plain", lambda self, engine, seconds=0.0: None)
        patch.setattr("esper.compare.baseline_process.START_AFTER", 3600.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def trial_of_vmap_once():
    """Hosts of our own pass the trial of vmap: in each process the first of a class shows it."""
    trial, passed = choice._vmap_failure, set()

    def once(network, life, x):
        host = type(network.host.template)
        if host in passed:
            return None
        problem = trial(network, life, x)
        if problem is None and host.__module__.startswith("esper.kasmina.hosts."):
            passed.add(host)
        return problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_vmap_failure", once)
        yield


def _seed_everything() -> None:
    seed = 104_729  # none that a test gives itself: draws of both are expected to differ
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(autouse=True, scope="module")
def same_draws_in_fixtures():
    """What a module's own fixtures draw does not depend on the tests before it."""
    _seed_everything()


@pytest.fixture(autouse=True)
def same_draws():
    """What a test draws does not depend on the tests before it, which differ from run to run."""
    _seed_everything()


@pytest.fixture(autouse=True)
def full_precision():
    """No TF32 on a GPU: executors are compared in real float32."""
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept


@pytest.fixture(autouse=True)
def no_settings_left_behind():
    """A test that changes how later ones compute would make them fail in its place."""
    yield
    found = process_settings()
    torch.backends.mkldnn.enabled = AT_START["torch.backends.mkldnn.enabled"]
    torch.set_num_threads(AT_START["torch.get_num_threads()"])
    torch.set_default_dtype(AT_START["torch.get_default_dtype()"])
    assert found == AT_START, "left behind by this test or a fixture before it"


@pytest.fixture
def users_folder() -> Iterator[Path]:
    """A folder of an ordinary user, whose rights the process has meanwhile, also under root."""
    root, nobody = os.geteuid() == 0, 65534
    with tempfile.TemporaryDirectory() as top:
        if root:
            os.chown(top, nobody, nobody)
            os.seteuid(nobody)
        try:
            yield Path(top)
        finally:
            if root:
                os.seteuid(0)
