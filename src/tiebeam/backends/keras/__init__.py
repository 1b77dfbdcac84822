"""Keras 3 models, on each of the frameworks that Keras runs on."""
