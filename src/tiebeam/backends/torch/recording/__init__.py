"""Writing down what a forward pass executes, and the numbers that only exist meanwhile."""
