"""Operations on many members at once: torch's, and our own kernels for CPU and GPU."""
