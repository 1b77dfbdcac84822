"""A tied pair whose logits are left uncomputed."""

import torch
import torch.nn.functional as F
from torch import nn

import tiebeam

IDS = torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(2))


def as_it_is(z):
    return z


class LM(nn.Module):
    """A tied pair with a layer between, whose logits go through `way`."""

    def __init__(self, way=as_it_is):
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.embed, self.body, self.head, self.way = (
            nn.Embedding(31, 8),
            nn.Linear(8, 8, False),
            nn.Linear(8, 31, False),
            way,
        )
        with torch.no_grad():
            for p in (self.embed.weight, self.body.weight):
                p.normal_(0.0, 0.5, generator=draws)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.way(self.head(self.body(self.embed(ids))))


def report_of(model):
    return tiebeam.inspect(LM(), IDS)


def loss_of(logits):
    return F.cross_entropy(logits.flatten(0, 1), IDS.flatten())


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}
