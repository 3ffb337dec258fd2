"""Kernels of our own, in Triton, for a GPU: what torch computes with several passes over memory.

Only doors import from here, and only where tensors are on a GPU: a CPU never needs triton.
"""
