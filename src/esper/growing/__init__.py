"""`esper.grow`: a user's model, data and budget in; the frontier of score against size out."""
