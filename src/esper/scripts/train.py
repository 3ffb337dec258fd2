"""Train many hosts side by side under a policy, and see what became of them.

    python -m esper.scripts.train wait --task digits_impaired
    python -m esper.scripts.train fixed --task digits_impaired --blueprint conv_heavy
    python -m esper.scripts.train random --task digits_impaired --rounds 3 --telemetry-dir events
    python -m esper.scripts.train ppo --task digits_impaired --rounds 100 --envs 16

Progress while it runs; at the end a table, a picture and all numbers. `ppo` learns, and is then
judged beside wait, random and heuristic on members it has not seen.
"""

from __future__ import annotations

import sys

from esper.scripts.door import enter
from esper.scripts.train_config import Train


def main() -> int:
    """The command."""
    return enter(Train, train)


def train(config: Train) -> None:
    """Check, run, report. Heavy libraries are imported here, so that --help is quick."""
    config.check()
    from esper.leyline.files import require_writable

    require_writable(config.out / "train.png", "--out")
    if config.policy == "ppo":
        from esper.scripts.train_learner import learn
        from esper.scripts.train_learner_report import report_learner

        report_learner(config, learn(config))
        return
    from esper.scripts.train_report import report
    from esper.scripts.train_run import run

    report(config, run(config))


if __name__ == "__main__":
    sys.exit(main())
