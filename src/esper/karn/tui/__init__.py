"""Terminal interface of run folders (`esper tui`), one widget per file; needs the extra `tui`."""
