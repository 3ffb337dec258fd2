"""Kernels of our own, in Triton, for a GPU: what torch computes with several passes over memory.

Only the doors (`esper.kasmina.convolution`, `.layers`, `.pooling`, `.row_ops`, ...) import from here, and only
where the tensors are on a GPU: a CPU never needs triton.
"""
