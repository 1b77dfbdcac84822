"""Mending a checkpoint: plan, values, files, config; each a small module."""
