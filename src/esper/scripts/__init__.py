"""The `esper` command: one module or folder per subcommand."""
