"""Runs cases of `sharded_cases.py` under executor `sharded` in several processes.

    python tests/sharded_driver.py RANKS FOLDER CASE...

Ranks are forked after the imports. The results of rank r go to FOLDER/CASE-r.pt.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed.fsdp  # before the fork, once for all ranks

import sharded_cases
from esper.leyline.errors import EsperError


def run(name: str, folder: Path) -> sharded_cases.Result:
    if name == "saved":
        return sharded_cases.saved("sharded", folder)
    if name == "loaded":
        return sharded_cases.loaded("sharded", folder / "loop")
    return (sharded_cases.CASES | sharded_cases.FAILING)[name]("sharded")


def work(folder: Path, names: list[str]) -> None:
    for name in names:
        torch.save(run(name, folder), folder / f"{name}-{os.environ['RANK']}.pt")


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def main(ranks: int, folder: Path, names: list[str]) -> int:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(ranks),
    }  # fmt: skip
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            try:
                work(folder, names)
            except EsperError as error:
                sys.stderr.write(f"{error}\n")  # at once: ranks share the stream
                os._exit(2)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
