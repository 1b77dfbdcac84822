"""Models in PyTorch. Importing this package imports no framework; its modules do."""
