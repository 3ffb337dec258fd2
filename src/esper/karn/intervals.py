"""How sure a mean is; leyline owns it, because learners report intervals too."""

from __future__ import annotations

from esper.leyline.intervals import Interval, t_interval

__all__ = ["Interval", "t_interval"]
