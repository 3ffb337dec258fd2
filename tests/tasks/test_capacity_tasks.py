"""Tasks whose hosts are short of capacity: many slots, many passes, seeds that fit and train."""

from dataclasses import replace

import numpy as np
import pytest

from engine_support import small_engine
from esper.kasmina.layers.counting import count_parameters
from esper.leyline.context import ContextSpec, Range
from esper.leyline.signals import NO_BLUEPRINT
from esper.tamiyo.baselines import WaitPolicy
from esper.tasks.registry import get_task_spec
from esper.tasks.synthetic_data import with_synthetic_data
from esper.tasks.task_data import PARTS, DataFiles

HOSTS = {  # task: parameters, slots, training samples, passes
    "cifar_resnet8_narrow": (5006, 6, 45_904, 10.71),
    "cifar_tiny10": (2286, 10, 45_904, 10.71),
    "fashion_resnet8": (75_002, 6, 56_000, 4.02),
    "fashion_resnet8_narrow": (4934, 6, 56_000, 8.78),
    "fashion_tiny8": (1622, 8, 56_000, 8.78),
    "digits_tiny8": (456, 8, 989, 62.12),
    "digits_tiny8_lean": (456, 8, 989, 62.12),
    "mnist1d_signal8": (238, 8, 3200, 60.0),
    "digits_tabular": (858, 4, 989, 15.53),
    "clusters_tabular": (778, 4, 4000, 24.0),
    "clusters_tabular8": (1450, 8, 4000, 24.0),
}
BUILT_IN = (
    "digits_tiny8",
    "digits_tiny8_lean",
    "digits_tabular",
    "clusters_tabular",
    "clusters_tabular8",
)
TABLE = "clusters_tabular"


class Planted(WaitPolicy):
    """Plants given topologies at step 0."""

    def __init__(self, kinds_ES):
        super().__init__()
        self.kinds_ES = kinds_ES

    def planted(self, members, slots, blueprints):
        return self.kinds_ES


def small(name: str):
    """The task with one step of one small batch, on made-up data where it needs files."""
    spec = get_task_spec(name)
    if isinstance(spec.load_data, DataFiles):
        spec = with_synthetic_data(spec, train=32, validation=10)
    return replace(spec, batch_size=16, batches_per_step=1, episode_length=1)


@pytest.mark.parametrize("name", HOSTS)
def test_hosts_slots_and_passes_are_those_stated(name):
    parameters, slots, samples, passes = HOSTS[name]
    spec = get_task_spec(name)
    host = spec.host_factory()
    assert count_parameters(host) == parameters
    assert len(spec.slots) == slots
    assert list(spec.slots) == [place.slot_id for place in host.injection_specs()]
    source = spec.load_data
    known = source.nominal_sizes[0] if isinstance(source, DataFiles) else len(spec.load().train)
    assert known == samples
    assert spec.episode_samples / samples == pytest.approx(passes, abs=0.01)


@pytest.mark.parametrize("name", HOSTS)
def test_every_blueprint_fits_a_slot(name):
    population = get_task_spec(name).population(members=1)
    fits_SK = population.network.fits_SK
    assert fits_SK.any(axis=0).all(), "every blueprint"
    assert fits_SK.any(axis=1).all(), "every slot"


@pytest.mark.parametrize("name", ["clusters_tabular", "digits_tabular", "digits_tiny8"])
def test_a_host_and_a_planted_member_train_a_step(name):
    spec = small(name)
    kinds_ES = np.full((2, len(spec.slots)), NO_BLUEPRINT, dtype=np.int64)
    kinds_ES[1, 0], kinds_ES[1, -1] = 1, 2
    engine = small_engine(spec, members=2)
    start = engine.env.model.network.host.flat_EP.detach().clone()
    outcome = engine.run_rollout(Planted(kinds_ES)).outcome
    assert np.isfinite(outcome.score_E).all()
    assert outcome.added_params_E[0] == 0 < outcome.added_params_E[1]
    assert (engine.env.model.network.host.flat_EP.detach() != start).any(dim=1).all()


def test_a_planted_member_trains_less_under_the_compute_clock():
    spec = replace(small(TABLE), batches_per_step=8)
    spec = replace(spec, context=ContextSpec(clock="compute", budget=Range(1.0, 1.0)))
    kinds_ES = np.full((2, len(spec.slots)), NO_BLUEPRINT, dtype=np.int64)
    kinds_ES[1] = spec.blueprints.index("mlp")
    outcome = small_engine(spec, members=2).run_rollout(Planted(kinds_ES)).outcome
    assert outcome.flops_ratio_E[0] == pytest.approx(1.0)
    assert outcome.flops_ratio_E[1] <= 1.0


# ---- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_data_folder_is_needed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    assert len(get_task_spec(name).load().train) == HOSTS[name][2]


def test_the_table_is_split_by_class_without_overlap():
    data = get_task_spec(TABLE).load()
    parts = [getattr(data, part) for part in PARTS]
    assert [len(part) for part in parts] == [4000, 800, 800, 800]
    rows = np.concatenate([part.inputs for part in parts])
    assert len(np.unique(rows, axis=0)) == len(rows), "no row is in two parts"
    share_PK = np.stack([np.bincount(part.labels, minlength=10) / len(part) for part in parts])
    assert np.ptp(share_PK, axis=0).max() < 2 / 800
    x = data.normalised(data.train)
    assert np.allclose(x.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(x.std(axis=0), 1, atol=1e-5)


def test_the_table_is_always_the_same():
    make = get_task_spec(TABLE).load_data
    assert (make().train.inputs == make().train.inputs).all()


def test_a_linear_map_cannot_separate_the_table():
    """Least squares on one-hot labels: capacity is what the task is about."""
    data = get_task_spec(TABLE).load()
    x, y = data.normalised(data.train), np.eye(10)[data.train.labels]
    weights = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
    test = data.normalised(data.test)
    guess = (np.c_[test, np.ones(len(test))] @ weights).argmax(axis=1)
    assert 0.1 < (guess == data.test.labels).mean() < 0.5
