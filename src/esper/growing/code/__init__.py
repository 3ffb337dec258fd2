"""A network of a search as a plain PyTorch script that trains it again without Esper."""
