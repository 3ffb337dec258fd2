"""What hosts and seeds cost: parameters, multiply-accumulates, shapes."""
