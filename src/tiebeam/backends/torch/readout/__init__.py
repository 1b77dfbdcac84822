"""A model whose loss is computed without its logits."""
