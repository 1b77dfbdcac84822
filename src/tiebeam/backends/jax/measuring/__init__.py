"""One forward and one backward pass with a table for each role, and the numbers that core asks for."""
