"""Rules for changing a table in the middle of a model's life: which one is meant, what its new rows are, what stays."""
