"""Our kernels for GPUs (Triton, and `block.cu` in CUDA C++), fusing what torch computes in several
passes.

Imported only where tensors are on a GPU, so a CPU never needs triton.
"""
