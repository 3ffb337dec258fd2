"""The doors: commands a person starts."""
