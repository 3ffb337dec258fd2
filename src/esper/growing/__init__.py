"""Growing: one call that grows a user's network on a user's data, within a budget."""
