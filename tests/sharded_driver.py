"""Runs cases of `sharded_cases.py` under executor `sharded` in several processes.

    python tests/sharded_driver.py RANKS FOLDER CASE...

Ranks are forked after the imports. The results of rank r go to FOLDER/CASE-r.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import sharded_cases
from fork_ranks import fork_ranks


def run(name: str, folder: Path) -> sharded_cases.Result:
    if name == "saved":
        return sharded_cases.saved("sharded", folder)
    if name == "loaded":
        return sharded_cases.loaded("sharded", folder / "loop")
    return (sharded_cases.CASES | sharded_cases.FAILING)[name]("sharded")


def main(ranks: int, folder: Path, names: list[str]) -> int:
    def work() -> None:
        for name in names:
            torch.save(run(name, folder), folder / f"{name}-{os.environ['RANK']}.pt")

    return fork_ranks(ranks, work)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
