"""What all pictures share: their look (`style`), and labels beside points (`labels`)."""
