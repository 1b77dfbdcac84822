"""One forward and one backward pass with a tensor for each role, and the numbers that core asks for."""
