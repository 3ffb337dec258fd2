"""Layers of hosts and seeds, how they are initialised, counted and checked."""
