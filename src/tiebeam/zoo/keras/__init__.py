"""Small Keras models whose truth is known."""
