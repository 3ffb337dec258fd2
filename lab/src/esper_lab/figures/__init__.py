"""How pictures of the lab look: style of matplotlib figures, and labels beside points."""
