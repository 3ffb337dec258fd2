"""One member: as a module, as text, as a file for others."""
