"""Generalised advantage estimation over `[T, E]`, in float64.

    delta_t = r_t + gamma * V_next - V_t          A_t = delta_t + gamma * lambda * A_(t+1)

At a terminal step V_next = 0 and the sum stops. At a truncated step the sum stops, too, and V_next
is the bootstrap value of that step.
"""

from __future__ import annotations

import numpy as np

from esper.leyline.arrays import Bools, Doubles


def advantages(
    reward_TE: Doubles,
    value_TE: Doubles,
    bootstrap_TE: Doubles,
    terminal_TE: Bools,
    truncated_TE: Bools,
    gamma: float,
    gae_lambda: float,
) -> Doubles:
    """Advantage of every step; returns are `A + value`. The last step must end all returns."""
    ended_TE = terminal_TE | truncated_TE
    value_next_TE = np.concatenate([value_TE[1:], np.zeros_like(value_TE[:1])])
    value_next_TE = np.where(truncated_TE, bootstrap_TE, value_next_TE)
    value_next_TE = np.where(terminal_TE, 0.0, value_next_TE)
    delta_TE = reward_TE + gamma * value_next_TE - value_TE
    advantage_TE = np.zeros_like(delta_TE)
    ahead_E = np.zeros(delta_TE.shape[1])
    for t in reversed(range(len(delta_TE))):
        ahead_E = delta_TE[t] + gamma * gae_lambda * np.where(ended_TE[t], 0.0, ahead_E)
        advantage_TE[t] = ahead_E
    return advantage_TE
