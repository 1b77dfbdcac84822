"""Kinds of JAX models, one file each: arrays out, a pure call, and back."""
