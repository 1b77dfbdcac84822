"""What the two roles do while a model trains."""

import pytest
import torch
from tests.measure.models import next_token_loss
from torch import Tensor

import tiebeam
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.minigpt import MiniGPT

VOCAB = 512


class Text:
    """Batches in which each token has four likely followers, and rank sets how often it comes."""

    def __init__(self) -> None:
        self.draw = torch.Generator().manual_seed(0)
        self.followers = torch.randint(0, VOCAB, (VOCAB, 4), generator=self.draw)
        self.often = 1 / torch.arange(1, VOCAB + 1.0)

    def batch(self, rows: int = 8, tokens: int = 32) -> Tensor:
        fresh = torch.multinomial(self.often, rows * tokens, True, generator=self.draw).view(tokens, rows)
        jumps = torch.rand(tokens, rows, generator=self.draw) < 0.3
        choice = torch.randint(0, 4, (tokens, rows), generator=self.draw)
        read = [fresh[0]]
        for t in range(1, tokens):
            read.append(torch.where(jumps[t], fresh[t], self.followers[read[-1], choice[t]]))
        return torch.stack(read, 1)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["A", "B", "C", "D", "F"])
def test_the_readout_comes_to_dominate_the_gradient_of_a_tied_table(scheme: str) -> None:
    """The ratio of lookup to readout is near 1 at first and below 0.5 after some tens of steps."""
    torch.manual_seed(0)
    model, text = MiniGPT(MiniGPTConfig.from_scheme(scheme, vocab=VOCAB, width=64, layers=2)), Text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = tiebeam.Watch(model, every=50)
    for step in range(51):
        ids = text.batch()
        watch(step, ids)
        optimizer.zero_grad()
        next_token_loss(model(ids), ids).backward()
        optimizer.step()
    (_, first), (_, later) = watch.history
    assert first.role_ratio is not None
    assert later.role_ratio is not None
    assert 0.5 < first.role_ratio < 2
    assert later.role_ratio < 0.5
    assert later.role_ratio < first.role_ratio / 2
    assert all(found.tables[0].unaccounted == 0.0 for found in (first, later))
