"""The audit: what every topology of a task scores in every context, and what deciding is worth."""
