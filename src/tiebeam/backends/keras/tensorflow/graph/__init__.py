"""The function graph of a model's call: as written, flat, and kept."""
