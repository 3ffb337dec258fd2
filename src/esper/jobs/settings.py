"""Where independent jobs run: settings that `compare`, `audit` and `sweep` share."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final

from esper.leyline.errors import EsperError, install_hint, shown
from esper.leyline.limits import require_at_most

LOCAL: Final = "local"
RAY: Final = "ray"
RAY_ADDRESS: Final = re.compile(r"ray://[^/\s:]+:\d{1,5}")
MAX_PROCESSES: Final = 256
MAX_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Where jobs run, how many at a time, and how often a dead one is tried."""

    on: str = LOCAL
    """Where jobs run: local (processes of this machine), ray (the Ray of this machine, started if
    there is none), or ray://HOST:PORT (a cluster)."""
    processes: int = 1
    """Jobs at a time, each in a process of its own; on a GPU start NVIDIA's MPS first."""
    job_cpus: float | None = None
    """Ray: CPUs of each job; default 1."""
    job_gpus: float | None = None
    """Ray: GPUs of each job, also a part of one; default 1 with --device cuda, else 0."""
    job_tries: int = 3
    """How often a job is started whose process dies."""
    ray_timeout: float = 20.0
    """Ray: seconds to wait for a cluster."""

    @property
    def inline(self) -> bool:
        """Whether jobs run in this process."""
        return self.on == LOCAL and self.processes == 1

    @property
    def address(self) -> str | None:
        """Address of a Ray cluster; None: the Ray of this machine, or none at all."""
        return None if self.on in (LOCAL, RAY) else self.on

    def on_device(self, device: str) -> JobSettings:
        """The same for jobs that compute on `device`: on a GPU each asks Ray for one."""
        if self.on == LOCAL:
            return self
        if device.startswith("cuda:"):
            raise EsperError(
                f"--device {device} with --on {self.on}: Ray chooses the GPU of each job; use "
                f"--device cuda"
            )
        import torch

        gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        return replace(self, job_gpus=1.0) if gpu and self.job_gpus is None else self

    def check(self) -> None:
        """Raise unless jobs can run so; connects to nothing."""
        for name, value, most in (
            ("processes", self.processes, MAX_PROCESSES),
            ("job-tries", self.job_tries, MAX_TRIES),
        ):
            require_at_most(f"--{name} ", value, most)
            if value < 1:
                raise EsperError(f"--{name} {value}: must be 1 or more")
        if self.on not in (LOCAL, RAY) and not RAY_ADDRESS.fullmatch(self.on):
            raise EsperError(f"--on {shown(self.on)}: use local, ray, or ray://HOST:PORT")
        for name, share in (("job-cpus", self.job_cpus), ("job-gpus", self.job_gpus)):
            if share is not None and not 0 <= share <= MAX_PROCESSES:
                raise EsperError(f"--{name} {share:g}: must be 0 to {MAX_PROCESSES}")
            if share is not None and self.on == LOCAL:
                raise EsperError(f"--{name} {share:g}: only Ray assigns these, add --on ray")
        if not 0 < self.ray_timeout <= 3600:
            raise EsperError(f"--ray-timeout {self.ray_timeout:g}: must be above 0, 3600 at most")
        if self.on != LOCAL and find_spec("ray") is None:
            raise EsperError(f"--on {self.on}: Ray is not installed; {install_hint('ray')}")
