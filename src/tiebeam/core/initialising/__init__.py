"""What a std does, which one to draw, and the draw."""
