"""PyTorch optimizers: groups made of core's plan, what one holds, as facts for core, and what changes its gradients."""
