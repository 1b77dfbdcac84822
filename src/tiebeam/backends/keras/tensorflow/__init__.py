"""Keras models that run on TensorFlow, seen through TensorFlow's function graph."""
