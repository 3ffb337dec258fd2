"""Shared code of the commands: argument parsing, errors, signals, output and reports."""
