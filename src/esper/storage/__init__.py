"""Storage: how files survive a crash. Atomic writes, checksums, saves of tensors, locks."""
