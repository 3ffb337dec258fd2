"""Crash-safe storage: atomic writes, checksums, tensor saves, locks."""
