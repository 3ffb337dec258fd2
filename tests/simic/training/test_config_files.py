"""Settings from files: strict, complete, and the same after a round trip."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import EsperError
from esper.leyline.actions import ActionHead
from esper.leyline.codec import to_json
from esper.simic.agent.schedule import Schedule
from esper.simic.training.config import (
    PRESETS,
    PopulationConfig,
    TaskConfig,
    TrainingConfig,
    preset,
)
from esper.simic.training.config_files import overlay, read_entries, resolve
from esper.tamiyo.frozen_heads import PLAIN_BLEND
from support import refused


def written(tmp_path, text: str, name: str = "mine.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


FROZEN = st.sampled_from([(), PLAIN_BLEND, ((ActionHead.TEMPO, 2),)])


@given(
    st.builds(
        TrainingConfig,
        task=st.builds(
            TaskConfig,
            blueprints=st.sampled_from([(), ("norm", "conv_light")]),
            episode_length=st.none() | st.integers(1, 99),
            rent=st.floats(0, 10),
            data=st.sampled_from(["files", "synthetic"]),
        ),
        population=st.builds(PopulationConfig, envs=st.integers(1, 64), frozen_heads=FROZEN),
        rounds=st.integers(1, 500),
        seed=st.integers(0, 10_000),
    )
)
def test_what_is_saved_of_a_config_is_read_back_as_it_was(config):
    text = json.dumps(to_json(config), allow_nan=False)
    assert overlay(TrainingConfig(), json.loads(text), "saved.json") == config


@pytest.mark.parametrize("name", PRESETS)
def test_a_saved_preset_says_everything_whatever_it_is_laid_over(name, tmp_path):
    config = preset(name, 7)
    path = written(tmp_path, json.dumps(to_json(config)), "config.json")
    for other in PRESETS:
        assert resolve(other, path) == config


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path):
    path = written(
        tmp_path,
        """
        rounds = 50
        [task]
        rent = 2
        [ppo]
        target_kl = "none"
        learning_rate = 0.002
        entropy = { end = 0.0 }
        network.width = 32
        """,
    )
    base = preset("digits_impaired", 50)
    network = replace(base.ppo.network, width=32)
    ppo = replace(
        base.ppo,
        target_kl=None,
        learning_rate=Schedule(0.002),
        entropy=replace(base.ppo.entropy, end=0.0),
        network=network,
    )
    assert resolve("", path) == replace(base, task=replace(base.task, rent=2.0), ppo=ppo)


@pytest.mark.parametrize("name", ["digits_impaired", "digits_quick", "cifar_baseline"])
def test_schedules_of_a_preset_run_over_the_run(name):
    ppo = preset(name, 30).ppo
    assert ppo.learning_rate.steps == ppo.entropy.steps == "run"


def test_a_file_may_say_how_long_a_schedule_is(tmp_path):
    schedules = ("{ start = 1e-3, end = 1e-4, steps = 'run' }", "{ start = 0.1, steps = 7 }")
    text = "[ppo]\nlearning_rate = {}\nentropy = {}".format(*schedules)
    found = resolve("plain", written(tmp_path, text)).ppo
    assert found.learning_rate == Schedule(1e-3, 1e-4, "run")
    assert found.entropy == Schedule(0.1, 0.0, 7)


def test_what_a_preset_says_about_its_task_is_for_that_task_alone(tmp_path):
    elsewhere = resolve("digits_impaired", task="synthetic")
    assert elsewhere.task == TaskConfig("synthetic")
    assert elsewhere.population == preset("digits_impaired", 1).population
    path = written(tmp_path, '[task]\nname = "synthetic"\nrent = 3.0')
    assert resolve("digits_impaired", path).task == TaskConfig("synthetic", rent=3.0)


def test_without_a_name_the_preset_is_the_one_called_like_the_task(tmp_path):
    assert resolve(task="cifar_baseline").population.envs == 32
    assert resolve(task="mnist1d") == replace(TrainingConfig(), task=TaskConfig("mnist1d"))
    path = written(tmp_path, '[task]\nname = "cifar_baseline"')
    assert resolve("", path) == preset("cifar_baseline", TrainingConfig().rounds)


WRONG = [
    ("rouns = 3", "did you mean 'rounds'?"),
    ("[ppo]\nepocs = 3", "unknown setting 'epocs' in [ppo] of config file"),
    ("[ppo.network]\nwdth = 3", "did you mean 'width'?"),
    ("xyzzy = 3", "valid: task, population, rounds"),
    ("rounds = 'ten'", "rounds: 'ten', expected int"),
    ("rounds = 2.5", "rounds: 2.5, expected int"),
    ("rounds = true", "rounds: True, expected int"),
    ("task = 'digits_impaired'", "task is 'digits_impaired', expected a section"),
    ("[task]\ndata = 'fils'", "files"),
    ("[population]\nenvs = 0", "envs=0"),
    ("[population]\nfrozen_heads = [['STILE', 0]]", "STYLE"),
    ("[ppo]\nclip = -1.0", "clip=-1.0: must be above 0"),
    ("[ppo.learning_rate]\nsteps = 'runn'", "ppo.learning_rate.steps: 'runn', expected int"),
    ("[ppo]\nvalue_coef = inf", "value_coef=inf: must be within 0..1e+06"),
    ("[ppo.learning_rate]\nstart = 'x'", "ppo.learning_rate.start: 'x', expected float"),
    ("rounds = 0", "rounds=0"),
    ("seed = 10000019", "reserved for evaluation"),
]


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[text.split("\n")[-1] for text, _ in WRONG])
def test_what_a_file_gets_wrong_is_one_line_with_its_path(text, says, tmp_path):
    path = written(tmp_path, text)
    reported = refused(lambda: resolve("plain", path))
    assert str(path) in reported
    assert says in reported


BROKEN = [
    ("rounds = ", "mine.toml", "is not TOML"),
    ("{'rounds': 3}", "mine.json", "is not JSON"),
    ("[1, 2]", "mine.json", "a list, expected settings by name"),
    ("rounds: 3", "mine.yaml", "must end in .toml or .json"),
    ('{"format": "esper-save", "schema": 1}', "manifest.json", "unknown setting 'format'"),
    ("[" * 100_000, "deep.json", "is not JSON"),
]


@pytest.mark.parametrize(("text", "name", "says"), BROKEN, ids=[name for _, name, _ in BROKEN])
def test_a_file_of_another_kind_is_refused_in_one_line(text, name, says, tmp_path):
    reported = refused(lambda: resolve("plain", written(tmp_path, text, name)))
    assert says in reported
    assert name in reported


def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path):
    assert "No such file" in refused(lambda: read_entries(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    assert "folder.toml cannot be read" in refused(lambda: read_entries(tmp_path / "folder.toml"))
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    assert "bytes.json is not JSON" in refused(lambda: read_entries(tmp_path / "bytes.json"))


def test_every_setting_has_a_sentence():
    """The source of each config class says something under each field."""
    import inspect
    from dataclasses import fields, is_dataclass
    from typing import get_type_hints

    waiting, seen = [TrainingConfig], []
    while waiting:
        config = waiting.pop()
        source = "\n".join(map(inspect.getsource, config.__mro__[:-1]))  # base classes, too
        for field in fields(config):
            seen.append(field.name)
            _, found, rest = source.partition(f"\n    {field.name}: ")
            assert found, field.name
            assert '"""' in rest.split("\n    def ")[0].split("\n\n")[0], field.name
            hint = get_type_hints(config)[field.name]
            if is_dataclass(hint):
                waiting.append(hint)
    assert len(set(seen)) > 40


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"population": PopulationConfig(rollout_steps=25)}, "has 24 steps"),
        ({"population": PopulationConfig(frozen_heads=((ActionHead.STYLE, 3),))}, "0 to 2"),
        ({"population": PopulationConfig(frozen_heads=((ActionHead.BLUEPRINT, 6),))}, "0 to 5"),
        ({"population": PopulationConfig(frozen_heads=((ActionHead.OP, 0),))}, "after SLOT"),
        ({"population": PopulationConfig(frozen_heads=PLAIN_BLEND[:1] * 2)}, "named twice"),
        ({"task": TaskConfig(blueprints=("conv_lite",))}, "conv_light"),
        ({"task": TaskConfig("digits_impared")}, "digits_impaired"),
    ],
)
def test_combinations_that_no_run_could_have_are_refused_with_the_reason(change, says):
    config = replace(TrainingConfig(), **change)
    assert says in refused(config.check)


def test_rent_multiplies_what_growth_costs():
    plain, dear = TaskConfig("digits_impaired").spec(), TaskConfig("digits_impaired", rent=3).spec()
    for name in ("c_p", "c_m", "c_f"):
        assert getattr(dear.score, name) == pytest.approx(3 * getattr(plain.score, name))
    assert dear.rent == 3
    assert replace(dear, score=plain.score, rent=1.0) == plain
    for rent in (-1.0, float("nan"), float("inf")):
        with pytest.raises(EsperError, match="rent="):
            TaskConfig(rent=rent)
