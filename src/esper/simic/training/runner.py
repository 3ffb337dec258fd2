"""`run_ppo_updates`, where the founding documents name it; the agent's packages own it."""

from esper.simic.agent.update_passes import run_ppo_updates as run_ppo_updates
