"""Device: how host and accelerator exchange values. Selection, uploads, streams, graphs."""
