"""Small MiniGPTs in PyTorch, and what they read."""

import dataclasses

import torch

from tiebeam.zoo.torch.minigpt import MiniGPT, MiniGPTConfig

POSITIONS = ("learned", "rotary", "none")
SMALL = MiniGPTConfig(vocab=31, width=16, layers=2, heads=2, block_size=8, table_std=0.25)


def build(seed=0, **changes):
    return MiniGPT(dataclasses.replace(SMALL, **changes), generator=torch.Generator().manual_seed(seed))


def random_ids(*shape, vocab=31, seed=0):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def largest_gap(a, b):
    return float((a - b).detach().abs().max())
