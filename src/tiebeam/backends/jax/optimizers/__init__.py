"""Optax: transformations made of core's plan, and what one does to a table, as facts for core."""
