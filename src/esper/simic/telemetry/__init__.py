"""What is told about a run: figures of the learner put together, and (to come) the emitters."""
