"""Kernels of our own, in Triton: imported only where they run, which is on a CUDA device."""
