"""What controllers are paid: families measure, modes pay; `factory.make_reward` makes one."""
