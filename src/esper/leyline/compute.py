"""Where and how members are computed: the one set of settings that every entry point shares."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

Profile = Literal["exact", "fast"]
ExecutorName = Literal["auto", "vmap", "loop", "sharded"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
KernelName = Literal["own", "fused", "torch"]
KernelMode = Literal["auto", "own", "fused", "torch"]
GraphMode = Literal["auto", "on", "off"]
DataPlacement = Literal["auto", "device", "stream"]

PROFILES: Final[tuple[Profile, ...]] = get_args(Profile)
EXECUTOR_NAMES: Final[tuple[ExecutorName, ...]] = get_args(ExecutorName)
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
KERNEL_MODES: Final[tuple[KernelMode, ...]] = get_args(KernelMode)
GRAPH_MODES: Final[tuple[GraphMode, ...]] = get_args(GraphMode)
PLACEMENTS: Final[tuple[DataPlacement, ...]] = get_args(DataPlacement)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings:
    """Base of every config that says where and how members are computed."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:<number>`; `auto` takes a GPU if there is one."""
    profile: Profile = "exact"
    """`exact`: bit-identical runs on one kind of machine; `fast` may reorder sums and picks the
    faster executor."""
    executor: ExecutorName = "auto"
    """`vmap`: all members at once; `loop`: one after the other; `sharded`: loop, with every network
    cut over the ranks of a torchrun job; `auto`: the faster one (`fast`), or vmap where it works,
    but loop for large images on a CPU (`exact`)."""
    precision: Precision = "auto"
    """Number type of members; `auto` is bf16 on a GPU that has it, else fp32."""
    kernels: KernelMode = "auto"
    """Kernels on a GPU in half precision: our `own`, `fused` (whole blocks in one kernel) or
    `torch`'s; `auto`: fused, under `fast` the faster of fused and torch's. On a CPU with a C
    compiler `fused` is blocks in C, for executor `loop`; `auto` takes them under `fast`."""
    graphs: GraphMode = "auto"
    """Batches and the policy's steps as captured CUDA graphs; `auto` uses them on CUDA, with
    the loop executor for plans that stay."""
    data_placement: DataPlacement = "auto"
    """Training data on the `device`, or on the host and `stream`ed; `auto` takes the device if
    they fit."""

    def compute(self) -> dict[str, Any]:
        """These settings by name, for another config of the same base."""
        return {field.name: getattr(self, field.name) for field in fields(ComputeSettings)}
