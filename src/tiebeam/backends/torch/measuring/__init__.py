"""One forward and one backward pass, the roles told apart, and the numbers that core asks for."""
