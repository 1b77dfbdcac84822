"""Changing the tables of a live PyTorch model and what its optimizers remember of them."""
