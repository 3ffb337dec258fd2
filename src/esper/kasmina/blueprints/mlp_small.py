"""mlp_small: feed-forward pair with the same width inside."""

from __future__ import annotations

from esper.kasmina.blueprints.mlp import MLP
from esper.kasmina.blueprints.registry import blueprint


@blueprint("mlp_small", topologies=("transformer", "mlp"), min_width=2)
class MLPSmall(MLP):
    """Norm, linear map of the same width, GELU, linear map (initially 0)."""

    ratio = 1
