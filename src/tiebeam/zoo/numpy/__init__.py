"""Models in NumPy alone, forward and backward written by hand."""
