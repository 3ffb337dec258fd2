"""Parameters of all members in stacked tensors, and the network that reads them."""
