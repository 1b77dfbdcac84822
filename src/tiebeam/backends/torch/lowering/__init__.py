"""From what PyTorch executed to core's graph."""
