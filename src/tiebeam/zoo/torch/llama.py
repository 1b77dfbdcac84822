"""A small Llama: root-mean-square norms, rotary positions, grouped keys and values, a gated feed-forward part."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.errors import RangeError
from tiebeam.zoo.minigpt import ROTARY_BASE

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a `Llama`.

    Attributes:
        vocab, width: Of the table.
        layers: Blocks.
        heads: Divides `width`.
        kv_heads: Divides `heads`: as many queries share a key and a value.
        hidden: Width of the feed-forward part.
        block_size: Longest sequence. Unit: tokens.
        tie: Whether lookup and readout are one parameter.
    """

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    block_size: int
    tie: bool = True

    def __post_init__(self) -> None:
        sizes = (self.vocab, self.width, self.layers, self.heads, self.kv_heads, self.hidden, self.block_size)
        if min(sizes) < 1 or self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise RangeError(
                "sizes of a Llama", got=str(self), expected="at least 1; heads divide half the width, kv_heads heads"
            )


class Llama(nn.Module):
    """A Llama: ids (batch, tokens) -> rows -> blocks -> norm -> logits (batch, tokens, vocab).

    Source: Touvron et al. 2023, arXiv 2302.13971; grouped queries: Ainslie et al. 2023, arXiv 2305.13245.

    Example:
        >>> model = Llama(LlamaConfig(vocab=50, width=16, layers=1, heads=4, kv_heads=2, hidden=24, block_size=8))
        >>> model(torch.tensor([[1, 2, 3]])).shape, model.head.weight is model.embed.weight
        (torch.Size([1, 3, 50]), True)
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, EPS)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        if config.tie:
            self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=config.width**-0.5)

    @classmethod
    def from_arrays(cls, config: LlamaConfig, weights: Mapping[str, npt.NDArray[np.float32]]) -> "Llama":
        """A model with these weights, copied.

        Args:
            config: Its sizes.
            weights: By module, as "blocks.0.query"; float32, (out, in). Without "head" where the config ties.
        """
        with torch.device("meta"):
            model = cls(config)
        state = {f"{name}.weight": torch.from_numpy(np.array(array)) for name, array in weights.items()}
        if config.tie:
            state["head.weight"] = state["embed.weight"]
        model.load_state_dict(state, assign=True)
        if config.tie:
            model.head.weight = model.embed.weight  # assigned by name, each made a parameter of its own
        return model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token at every position."""
        tokens = ids.shape[1]
        if tokens > self.config.block_size:
            raise RangeError("tokens of a Llama", got=str(tokens), expected=f"at most {self.config.block_size}")
        x = self.embed(ids)
        turn = rotation(tokens, self.config.width // self.config.heads, ids.device)
        for block in self.blocks:
            x = block(x, turn)
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    @torch.no_grad()
    def generate(self, prefix: Tensor, max_new_tokens: int, *, stop: int | None = None) -> Tensor:
        """Continue one row greedily, at most to `block_size`.

        Args:
            prefix: (1, tokens), at least one.
            max_new_tokens: Tokens to add.
            stop: A token that ends the text, and is not added.

        Returns:
            (1, tokens + those added).
        """
        ids = prefix
        for _ in range(max_new_tokens):
            if ids.shape[1] >= self.config.block_size:
                break
            token = self(ids)[:, -1].argmax(dim=-1, keepdim=True)
            if stop is not None and int(token) == stop:
                break
            ids = torch.cat((ids, token), dim=1)
        return ids


class LlamaBlock(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.each = config.width // config.heads
        narrow = self.each * config.kv_heads
        self.attention_norm = nn.RMSNorm(config.width, EPS)
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, narrow, bias=False)
        self.value = nn.Linear(config.width, narrow, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(config.width, EPS)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Return the stream after this block, (batch, tokens, width)."""
        x = x + self._attention(self.attention_norm(x), turn)
        h = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))  # type: ignore[no-any-return]

    def _attention(self, x: Tensor, turn: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q = turned(self.query(x).view(batch, tokens, self.heads, self.each), turn)
        k = turned(self.key(x).view(batch, tokens, self.kv_heads, self.each), turn)
        v = self.value(x).view(batch, tokens, self.kv_heads, self.each)
        shared = self.heads // self.kv_heads
        k, v = (t.repeat_interleave(shared, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))  # type: ignore[no-any-return]


def rotation(tokens: int, each: int, device: torch.device) -> Tensor:
    """Cosines and sines of each position and pair of channels, (tokens, each / 2, 2), float32."""
    pairs = torch.arange(0, each, 2, device=device, dtype=torch.float32)
    angles = torch.outer(torch.arange(tokens, device=device, dtype=torch.float32), ROTARY_BASE ** (-pairs / each))
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Turn (batch, tokens, heads, each), pairing neighbouring channels, in float32."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = (t[None, :, None] for t in turn.unbind(-1))
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)
