"""`esper.simic.seed_management` re-exports the seven helpers."""

import importlib
import subprocess
import sys

import pytest

from esper.simic import seed_management

HOMES = {
    "run_ppo_updates": "esper.simic.training.runner",
    "aggregate_ppo_metrics": "esper.simic.telemetry.aggregation",
    "calculate_entropy_anneal_steps": "esper.simic.training.schedules",
    "advance_active_seed": "esper.kasmina.lifecycle",
    "resolve_target_slot": "esper.kasmina.lifecycle",
    "handle_telemetry_escalation": "esper.simic.telemetry.anomaly",
    "emit_anomaly_diagnostics": "esper.simic.telemetry.anomaly",
}


@pytest.mark.parametrize(("name", "home"), HOMES.items())
def test_each_helper_is_the_one_of_its_room(name, home):
    found = getattr(seed_management, name)
    assert found is getattr(importlib.import_module(home), name)


def test_it_holds_these_seven_and_nothing_else():
    assert sorted(seed_management.__all__) == sorted(HOMES) == sorted(dir(seed_management))
    with pytest.raises(AttributeError, match="'run_ppo_update'"):
        _ = seed_management.run_ppo_update


def test_the_import_alone_loads_no_torch():
    code = "import sys, esper.simic.seed_management; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
