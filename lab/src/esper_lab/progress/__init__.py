"""Progress displays of the lab's commands."""
