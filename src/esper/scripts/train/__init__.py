"""Train many hosts side by side under a policy, and see what became of them.

    python -m esper.scripts.train wait --task digits_impaired
    python -m esper.scripts.train fixed:conv_heavy@2:r0c0,r0c1 --task digits_impaired
    python -m esper.scripts.train random --task digits_impaired --rounds 3 --telemetry-dir events
    python -m esper.scripts.train ppo --task digits_impaired --rounds 100 --envs 16

Progress while it runs; at the end a table, a picture and all numbers. `ppo` learns, and is then
judged beside static-final (its own topologies, planted), wait, random and heuristic on members it
has not seen. `esper train` is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import guarded
from esper.tamiyo.grammar import DESCRIPTIONS, WORDS


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return guarded(lambda: train(sys.argv[1:] if argv is None else argv))


def train(words: Sequence[str]) -> int:
    """Read, check, run, report. Heavy libraries are imported late, so that --help is quick."""
    from esper.scripts.train.config import LEARNER

    names = [LEARNER, *WORDS]
    if not words:
        raise EsperError(f"name a policy: {', '.join(names)}; --help says what each does")
    policy, *flags = words
    if policy in ("-h", "--help"):
        print(overview())
    elif policy == LEARNER:
        train_learner(flags)
    elif policy.startswith("-"):
        raise EsperError(f"{policy}: name the policy before any flag: {', '.join(names)}")
    else:
        train_unlearned(policy, flags)
    return 0


def overview() -> str:
    """What policies there are, with an example of each."""
    from esper.scripts.train.config import LEARNER

    learner = ("a controller that learns, then is judged on fresh hosts", "ppo --rounds 100")
    lines = ["usage: esper train POLICY [settings]", "", "Train hosts side by side.", ""]
    for name, (says, example) in ((LEARNER, learner), *DESCRIPTIONS.items()):
        lines += [f"  {name:<13} {says}", f"  {'':<13} esper train {example}"]
    lines += ["", "docs/compare.md has all forms. esper train POLICY --help lists the settings."]
    return "\n".join(lines)


def train_learner(flags: Sequence[str]) -> None:
    """`train ppo`."""
    from esper.scripts.train.learner_config import read_train_ppo

    config = read_train_ppo(flags)
    spec = config.check()
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    if config.dry_run:
        from esper.scripts.train.plan import plan_learner

        return plan_learner(config, spec)
    from esper.scripts.train.learner import learn
    from esper.scripts.train.learner_report import report_learner, report_places
    from esper.simic.training.runs.folder import report_of
    from esper.simic.training.runs.interrupts import Interrupted
    from esper.storage.atomic import require_not_folders

    if config.resume is not None:
        require_not_folders(report_places(report_of(config.resume)))
    try:
        with learn(config, spec) as learnt:
            report_learner(config, learnt)
    except Interrupted as stopped:  # asked to stop, and saved: not an error
        print(stopped, file=sys.stderr)


def train_unlearned(policy: str, flags: Sequence[str]) -> None:
    """`train` with a policy that does not learn."""
    from esper.scripts.train.config import read_train

    config = read_train(policy, flags)
    spec = config.check()
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    if config.dry_run:
        from esper.scripts.train.plan import plan_unlearned

        return plan_unlearned(config, spec)
    from esper.scripts.train.report import place_of_report, report_train
    from esper.scripts.train.run import run
    from esper.storage.atomic import require_not_folders, require_writable

    places = place_of_report(config, spec.name)
    require_not_folders(places)
    require_writable(places[0], "--out")
    return report_train(config, run(config, spec))
