"""lora_large: lora with a higher rank."""

from __future__ import annotations

from esper.kasmina.blueprints.lora import LoRA
from esper.kasmina.blueprints.registry import blueprint

RANK = 16


@blueprint("lora_large", topologies=("transformer",), min_width=RANK)
class LoRALarge(LoRA):
    """Linear map to 16 channels and back, no bias; the up projection is initially 0."""

    rank = RANK
