"""`esper train`: train a population of hosts under a policy.

    python -m esper.scripts.train wait --task digits_impaired
    python -m esper.scripts.train fixed:conv_heavy@2:r0c0,r0c1 --task digits_impaired
    python -m esper.scripts.train random --task digits_impaired --rounds 3 --telemetry-dir events
    python -m esper.scripts.train ppo --task digits_impaired --rounds 100 --envs 16

Shows progress, then a table, and writes all numbers. `ppo` trains a controller and
evaluates it on fresh members against static-final (its own topologies, planted from the start),
asha (a search over planted topologies), wait, random and heuristic.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import exit_status_of
from esper.scripts.cli.help import HELP_FLAGS
from esper.scripts.cli.signals import raise_signal_status
from esper.simic.distributed.environment import world_size
from esper.tamiyo.grammar import DESCRIPTIONS, EXAMPLE_FLAGS, WORDS


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return exit_status_of(lambda: train(sys.argv[1:] if argv is None else argv))


def train(argv: Sequence[str]) -> int:
    """Parse, check, run, report. Imports are local, so that --help is fast."""
    from esper.simic.training.runs.policy_file import LEARNER

    names = [LEARNER, *WORDS]
    if not argv:
        raise EsperError(f"name a policy: {', '.join(names)}; --help describes them")
    policy, *flags = argv
    if policy in HELP_FLAGS:
        print(_overview())
    elif policy == LEARNER:
        _train_learner(flags)
    elif policy.startswith("-"):
        raise EsperError(f"{policy}: name the policy before any flag: {', '.join(names)}")
    else:
        _train_baseline(policy, flags)
    return 0


def _overview() -> str:
    """Help text that lists the policies with an example of each."""
    from esper.simic.training.runs.policy_file import LEARNER

    learner = ("learns a controller, then evaluates it on fresh hosts", "ppo --rounds 100")
    lines = ["usage: esper train POLICY [settings]", "", "Train a population of hosts.", ""]
    for name, (says, example) in ((LEARNER, learner), *DESCRIPTIONS.items()):
        example += EXAMPLE_FLAGS.get(name, "")
        lines += [f"  {name:<13} {says}", f"  {'':<13} esper train {example}"]
    lines += ["", "docs/compare.md has all forms. esper train POLICY --help lists the settings."]
    return "\n".join(lines)


def _train_learner(flags: Sequence[str]) -> None:
    """Run `esper train ppo`, under torchrun as one of its ranks."""
    if world_size() > 1 and not set(HELP_FLAGS) & set(flags):
        return _train_on_ranks(flags)
    from esper.scripts.train.learner_config import read_train_ppo

    config = read_train_ppo(flags)
    spec = config.check()
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    if config.dry_run:
        from esper.scripts.train.plan import plan_learner

        return plan_learner(config, spec)
    from esper.scripts.cli.run_page import write_run_page
    from esper.scripts.train.learner import learn
    from esper.scripts.train.learner_report import report_learner, report_paths
    from esper.simic.training.runs.folder import report_dir
    from esper.simic.training.runs.interrupts import Interrupted
    from esper.storage.atomic import require_not_folders

    if config.resume is not None:
        require_not_folders(report_paths(report_dir(config.resume)))
    try:
        with learn(config, spec, spec.load(config.data_dir)) as learnt:
            report_learner(config, learnt)
    except Interrupted as stopped:  # stopped by a signal and saved: not an error
        print(stopped, file=sys.stderr)
    else:
        write_run_page(learnt.folder.path)


def _train_on_ranks(flags: Sequence[str]) -> None:
    """Run `esper train ppo` as one rank of a torchrun job."""
    from esper.scripts.train.ranks import train_on_ranks
    from esper.simic.training.runs.interrupts import Interrupted
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    try:
        train_on_ranks(flags)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)


def _train_baseline(policy: str, flags: Sequence[str]) -> None:
    """Run `esper train` with a policy that does not learn."""
    if world_size() > 1 and not set(HELP_FLAGS) & set(flags):
        raise EsperError(
            f"esper train {policy} under torchrun: only ppo trains on several processes; start it "
            f"without torchrun"
        )
    from esper.scripts.train.config import read_train

    config = read_train(policy, flags)
    spec = config.check()
    config = config.limited(spec)
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    if config.dry_run:
        from esper.scripts.train.plan import plan_baseline

        return plan_baseline(config, spec)
    from esper.scripts.cli.run_page import write_run_page
    from esper.scripts.train.report import report_path, report_train, run_name_of
    from esper.scripts.train.run import run
    from esper.simic.training.runs.folder import report_dir
    from esper.simic.training.runs.interrupts import Interrupted
    from esper.storage.atomic import require_not_folders, require_writable

    before = None if config.resume is None else report_dir(config.resume)
    place = report_path(config, spec.name, before)
    require_not_folders([place])
    if config.out is not None:
        require_writable(place, "--out")
    try:
        with run(config, spec, run_name_of(config.parsed)) as trained:
            report_train(config, trained)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        raise_signal_status(stopped.signal_name)
    else:
        write_run_page(trained.folder.path)
