"""What every command shares: its command line, refusals, signals, output and report."""
