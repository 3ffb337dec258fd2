"""Find places for seeds in any user's model, and plant them, by torch.fx and one example batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.kasmina.tracing.depths import Depths as Depths
    from esper.kasmina.tracing.finishing import finished_model as finished_model
    from esper.kasmina.tracing.host import HostTrace as HostTrace
    from esper.kasmina.tracing.host import trace_model as trace_model
    from esper.kasmina.tracing.inputs import Inputs as Inputs
    from esper.kasmina.tracing.planting import carry_weights as carry_weights
    from esper.kasmina.tracing.planting import planted_model as planted_model
    from esper.kasmina.tracing.planting import silence as silence
    from esper.kasmina.tracing.widths import ScaledModel as ScaledModel
    from esper.kasmina.tracing.widths import Scaling as Scaling
    from esper.kasmina.tracing.widths import scaled_model as scaled_model
else:
    __getattr__, __dir__, __all__ = attach(__name__)
