"""A member as plain torch modules with the same output."""
