"""Runs a function in several processes that find each other as those of torchrun do."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable

import torch.distributed.fsdp  # noqa: F401  before the fork, once for all ranks

from esper.leyline.errors import EsperError


def fork_ranks(ranks: int, work: Callable[[], None]) -> int:
    """Run `work` on each rank; return 0, or 2 if one was told what is wrong, 1 if one failed."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(ranks),
    }  # fmt: skip
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            try:
                work()
            except EsperError as error:
                sys.stderr.write(f"{error}\n")  # at once: ranks share the stream
                os._exit(2)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])
