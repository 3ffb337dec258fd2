"""mlp_small: mlp, no wider inside than outside."""

from __future__ import annotations

from esper.kasmina.blueprints.mlp import MLP
from esper.kasmina.blueprints.registry import blueprint


@blueprint("mlp_small", topologies=("transformer", "mlp"), min_width=2)
class MLPSmall(MLP):
    """Norm, linear map of the same width, GELU, linear map (0 at birth)."""

    ratio = 1
