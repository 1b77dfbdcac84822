"""Rates of groups, rules of optimizers, and what to warn of meanwhile."""
