"""A MiniGPT whose tables are narrower than its stream, each role by a product of its own."""

import torch
from torch import Tensor, nn

from tiebeam.errors import RangeError
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.blocks import KVCache
from tiebeam.zoo.torch.minigpt import MiniGPT


class FactorisedGPT(MiniGPT):
    """A pre-norm GPT with narrow tables.

    ids -> `embed` rows (lookup width) * lookup_factor -> `widen` -> the stream of MiniGPT -> norm -> `narrow` (readout
    width) -> `head` product * readout_factor. A role as wide as the stream has no product of its own.

    Args:
        config: Sizes and scales; its stds are of the narrow tables.
        lookup_width: Columns of the table that is looked up; None is the stream's width.
        readout_width: Columns of the table that is read out; likewise. Logits have a rank of at most that.
        generator: Where weights are drawn from; None is torch's own.

    Raises:
        RangeError: The tables are tied and differ in width, or one is no wider than 0 or wider than the stream.

    Source: Lan et al. 2020 (ALBERT), arXiv 1909.11942, section 3.1; Chung et al. 2021, arXiv 2010.12821, section 3.

    Example:
        >>> config = MiniGPTConfig(vocab=100, width=32, layers=1, heads=4, block_size=16)
        >>> model = FactorisedGPT(config, lookup_width=8, readout_width=8)
        >>> model.head.weight is model.embed.weight, tuple(model.embed.weight.shape)
        (True, (100, 8))
        >>> model(torch.tensor([[10, 25, 31]])).shape
        torch.Size([1, 3, 100])
    """

    def __init__(
        self,
        config: MiniGPTConfig,
        *,
        lookup_width: int | None = None,
        readout_width: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        widths = [config.width if given is None else given for given in (lookup_width, readout_width)]
        if config.tie and widths[0] != widths[1]:
            raise RangeError("tied tables of FactorisedGPT", got=f"widths {widths[0]} and {widths[1]}", expected="one")
        if not all(1 <= each <= config.width for each in widths):
            raise RangeError("widths of FactorisedGPT", got=f"{widths}", expected=f"1 to {config.width}")
        with torch.device("meta"):  # whose tables are replaced
            super().__init__(config)
        self.embed = nn.Embedding(config.vocab, widths[0], device="meta")
        self.head = nn.Linear(widths[1], config.vocab, bias=False, device="meta")
        self.widen, self.narrow = (
            None if each == config.width else nn.Linear(*shape, bias=False, device="meta")
            for each, shape in zip(widths, ((widths[0], config.width), (config.width, widths[1])), strict=True)
        )
        self.to_empty(device=torch.get_default_device())  # ties
        self.reset_parameters(generator)

    def _lookup(self, ids: Tensor) -> Tensor:
        rows = super()._lookup(ids)
        return rows if self.widen is None else self.widen(rows)

    def stream(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return what the readout reads, (batch, tokens, readout width)."""
        hidden = super().stream(ids, cache)
        return hidden if self.narrow is None else self.narrow(hidden)
