"""The readout loss in PyTorch."""
