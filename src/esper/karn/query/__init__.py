"""SQL over the records of a run: what `esper query` reads."""
