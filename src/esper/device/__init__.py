"""Device access: selection, uploads and downloads, random numbers, CUDA graphs."""
