"""Turn any user's model into a host, by torch.fx and one example batch."""

from __future__ import annotations

from esper.kasmina.tracing.host import HostTrace as HostTrace
from esper.kasmina.tracing.host import TracedHost as TracedHost
from esper.kasmina.tracing.host import trace_model as trace_model
from esper.kasmina.tracing.inputs import Inputs as Inputs
from esper.kasmina.tracing.plain import plain_model as plain_model
