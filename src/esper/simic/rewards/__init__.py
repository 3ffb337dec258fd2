"""What controllers are paid: one module per family."""
