"""Tasks: on what networks are grown. Data, splits and the order in which batches come."""
