"""The cross entropy of a readout without its logits. Importing this package imports no framework."""
