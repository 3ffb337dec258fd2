"""PPO training of a controller: configs, schedules, trainer and run folders."""
