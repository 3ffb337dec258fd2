"""Rows: which forward passes are computed, and in which order."""
