"""Parts to build a model of. Importing this package imports no framework; its modules do."""
