"""What files and configs say about a table, read without running any of their code."""
