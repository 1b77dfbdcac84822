"""Keras optimizers: one of several made of core's plan, and what one holds, as facts for core."""
