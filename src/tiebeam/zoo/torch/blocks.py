"""One pre-norm block: causal attention and a feed-forward layer, each added to the stream."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.errors import RangeError
from tiebeam.zoo.minigpt import NORM_EPSILON, ROTARY_BASE, MiniGPTConfig


class Rotation(NamedTuple):
    """Cosines and sines that turn each pair of channels: both (tokens, channels of a head / 2)."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, first: int, tokens: int, channels: int, device: torch.device) -> "Rotation":
        """Return the rotation of positions `first .. first + tokens - 1`.

        Made in float32 at every pass rather than kept in a buffer: a buffer would be rounded by
        `model.half()` and would hold garbage after `to_empty()`.
        """
        pairs = torch.arange(channels // 2, device=device, dtype=torch.float32)
        positions = torch.arange(first, first + tokens, device=device, dtype=torch.float32)
        angles = torch.outer(positions, ROTARY_BASE ** (-2.0 * pairs / channels))
        return cls(angles.cos(), angles.sin())

    def turn(self, x: Tensor) -> Tensor:
        """Turn `x`, (..., tokens, channels), pairing channel i with channel i + channels / 2; in float32."""
        a, b = x.chunk(2, dim=-1)
        turned = torch.cat((a * self.cos - b * self.sin, a * self.sin + b * self.cos), dim=-1)
        return turned.to(x.dtype)


class KVCache:
    """Keys and values of the tokens already read, for every layer, with room for `block_size` of them.

    Attributes:
        length: Tokens read so far, by every layer alike once a pass has ended.
    """

    def __init__(self, layers: int, block_size: int) -> None:
        self.length = 0
        self._block_size = block_size
        self._kept: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the new tokens' keys and values of one layer, and return all that it has.

        Args:
            layer: Index of the layer.
            keys: (batch, heads, new tokens, channels), already rotated.
            values: Likewise.

        Returns:
            Views, (batch, heads, length + new tokens, channels), that later calls leave as they are.
        """
        kept = self._kept[layer]
        if kept is None:
            batch, heads, _, channels = keys.shape
            shape = (batch, heads, self._block_size, channels)
            kept = self._kept[layer] = (keys.new_empty(shape), values.new_empty(shape))
        end = self.length + keys.shape[2]
        for room, new in zip(kept, (keys, values), strict=True):
            room[:, :, self.length : end] = new
        return kept[0][:, :, :end], kept[1][:, :, :end]

    def check_room(self, tokens: int) -> None:
        """Raise where `tokens` more do not fit.

        Raises:
            RangeError: They do not.
        """
        if self.length + tokens > self._block_size:
            raise RangeError(
                "the cache is full",
                got=f"{self.length} tokens kept and {tokens} new ones",
                expected=f"at most {self._block_size} in all",
                hint="start a new cache with the tokens of the window",
            )


class Attention(nn.Module):
    """Causal self-attention over `heads` heads."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.project = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, rotation: Rotation | None, cache: KVCache | None, layer: int) -> Tensor:
        """Mix the tokens of `x`, (batch, tokens, width), each with those before it and itself."""
        batch, tokens, width = x.shape
        split = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if rotation is not None:
            q, k = rotation.turn(q), rotation.turn(k)
        past = 0
        if cache is not None:
            past = cache.length
            k, v = cache.extend(layer, k, v)
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=_mask(past, tokens, x.device),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=past == 0,
        )
        return self.project(out.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


def _mask(past: int, tokens: int, device: torch.device) -> Tensor | None:
    """Return which of `past + tokens` keys each new token may see; None: all, or as `is_causal` says."""
    if past == 0 or tokens == 1:
        return None
    return torch.ones(tokens, past + tokens, dtype=torch.bool, device=device).tril(diagonal=past)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.width, config.hidden_width, bias=config.bias)
        self.project = nn.Linear(config.hidden_width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map every token of `x`, (..., width), by itself."""
        return self.project(F.gelu(self.expand(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=NORM_EPSILON)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=NORM_EPSILON)
        self.feed_forward = FeedForward(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, rotation: Rotation | None, cache: KVCache | None, layer: int) -> Tensor:
        """Return the stream after this block, (batch, tokens, width)."""
        x = x + self.drop(self.attention(self.attention_norm(x), rotation, cache, layer))
        return x + self.drop(self.feed_forward(self.feed_forward_norm(x)))  # type: ignore[no-any-return]
