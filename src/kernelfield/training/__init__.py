"""Training: from a network and data to a trained network."""
