"""Populations and members on disk, and moved to another population."""
