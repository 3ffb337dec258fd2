"""Simic's telemetry: how what happens in a run becomes events."""
