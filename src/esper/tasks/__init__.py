"""Tasks: data, splits, hosts, training settings and scores."""
