"""Run folders: checkpoints, resuming and stop signals."""
