"""Rewards: families measure progress, modes turn it into a reward; see `factory.make_reward`."""
