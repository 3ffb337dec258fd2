"""Simic's telemetry: how what happens in a run becomes events and figures."""
