"""PyTorch: recording below autograd, lowering to core's graph, reading and writing tables."""
