"""MiniGPT in Flax linen; with the same weights it is the model of `tiebeam.zoo.torch.minigpt`."""

import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.blocks.readout_loss.jax import readout_loss
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.zoo.minigpt import IGNORED_TARGET, NORM_EPSILON, ROTARY_BASE, MiniGPTConfig, Weights, check_weights

__all__ = ["MiniGPT", "params_of", "weights_of"]


def turned(x: Any) -> Any:
    """Turn `x`, (batch, tokens, heads, channels), pairing channel i with channel i + channels / 2; in float32."""
    tokens, channels = x.shape[1], x.shape[3]
    pairs = jnp.arange(channels // 2, dtype=jnp.float32)
    angles = jnp.outer(jnp.arange(tokens, dtype=jnp.float32), ROTARY_BASE ** (-2.0 * pairs / channels))
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x.dtype)


class Attention(nn.Module):
    """Causal self-attention over `heads` heads."""

    config: MiniGPTConfig

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        """Mix the tokens of `x`, (batch, tokens, width), each with those before it and itself."""
        c, (batch, tokens, width) = self.config, x.shape
        channels = width // c.heads
        split = _linear(c, 3 * width, width, "qkv")(x).reshape(batch, tokens, 3, c.heads, channels)
        q, k, v = jnp.moveaxis(split, 2, 0)
        if c.positions == "rotary":
            q, k = turned(q), turned(k)
        scores = jnp.einsum("bqhc,bkhc->bhqk", q, k) / math.sqrt(channels)
        scores = jnp.where(jnp.tri(tokens, dtype=bool), scores, -jnp.inf)
        shares = nn.Dropout(c.dropout, deterministic=not train)(nn.softmax(scores))
        mixed = jnp.einsum("bhqk,bkhc->bqhc", shares, v).reshape(x.shape)
        return _linear(c, width, width, "project", writes=True)(mixed)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    config: MiniGPTConfig

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Map every token of `x`, (..., width), by itself."""
        c = self.config
        h = nn.gelu(_linear(c, c.hidden_width, c.width, "expand")(x), approximate=False)
        return _linear(c, c.width, c.hidden_width, "project", writes=True)(h)


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`."""

    config: MiniGPTConfig

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        """Return the stream after this block, (batch, tokens, width)."""
        drop = nn.Dropout(self.config.dropout, deterministic=not train)
        h = _norm("attention_norm")(x)
        x = x + drop(Attention(self.config, name="attention")(h, train))
        h = _norm("feed_forward_norm")(x)
        return x + drop(FeedForward(self.config, name="feed_forward")(h))


class MiniGPT(nn.Module):
    """A pre-norm GPT; one parameter serves lookup and readout, where the config ties them.

    Attributes:
        config: Sizes and scales.

    Example:
        >>> model = MiniGPT(MiniGPTConfig(vocab=100, width=32, layers=0, heads=4, block_size=16))
        >>> ids = jnp.array([[10, 25, 31]])
        >>> params = jax.jit(model.init)(jax.random.key(0), ids)
        >>> sorted(params["params"])
        ['embed', 'norm', 'positions']
        >>> model.apply(params, ids).shape, model.apply(params, ids, method="loss").shape
        ((1, 3, 100), ())
    """

    config: MiniGPTConfig

    def setup(self) -> None:
        """Make every part; the readout's own table only where it has one."""
        c, normal = self.config, nn.initializers.normal
        self.embed = nn.Embed(c.vocab, c.width, embedding_init=normal(c.lookup_std))
        if c.positions == "learned":
            self.positions = self.param("positions", normal(c.position_std), (c.block_size, c.width))
        self.drop = nn.Dropout(c.dropout)
        self.blocks = [Block(c) for _ in range(c.layers)]
        self.norm = _norm(None)
        if not c.tie:
            self.head = self.param("head", normal(c.own_readout_std), (c.vocab, c.width))

    def __call__(self, ids: Any, train: bool = False) -> Any:
        """Return the logits of the next token at every position.

        Args:
            ids: (batch, tokens), integers, at most `block_size` tokens; outside the table they give NaN.
            train: Whether dropout acts; it draws from the stream "dropout".

        Returns:
            (batch, tokens, vocab). Unit: nats.

        Raises:
            InputError: `ids` are no integers of rank 2.
            RangeError: More tokens than `block_size`.
        """
        c = self.config
        hidden = self.stream(ids, train)
        logits = self.embed.attend(hidden) if c.tie else hidden @ self.head.T
        logits = logits if c.readout_factor == 1.0 else logits * c.readout_factor
        return logits if c.soft_cap is None else c.soft_cap * jnp.tanh(logits / c.soft_cap)

    def stream(self, ids: Any, train: bool = False) -> Any:
        """Return what the readout reads, (batch, tokens, width): `__call__` without its last product."""
        c = self.config
        _check_kind(ids)
        if ids.shape[1] > c.block_size:
            raise RangeError(
                "more tokens than the model can read",
                got=f"ids of shape {ids.shape}",
                expected=f"at most {c.block_size} tokens (block_size)",
                hint="cut the sequence, or choose a larger block_size",
            )
        x = self.embed(ids)
        x = x if c.lookup_factor == 1.0 else x * c.lookup_factor
        x = x + self.positions[: ids.shape[1]] if c.positions == "learned" else x
        x = self.drop(x, deterministic=not train)
        for block in self.blocks:
            x = block(x, train)
        return self.norm(x)

    def loss(self, ids: Any, targets: Any = None, train: bool = False) -> Any:
        """Return the mean cross entropy of the targets that are not -100, without holding the logits.

        Args:
            ids: (batch, tokens).
            targets: (batch, tokens), the right next token at each position. None: `ids` themselves are
                shifted by one, and may hold one token more than `block_size`.
            train: Whether dropout acts.

        Returns:
            A scalar. Unit: nats.

        Raises:
            InputError: As `__call__`; one token alone and no targets.
            ShapeError: `targets` and `ids` differ in shape.
        """
        _check_kind(ids)
        if targets is None:
            if ids.shape[1] < 2:
                raise InputError("one token has no next token", got=f"ids of shape {ids.shape}", hint="pass targets")
            ids, targets = ids[:, :-1], ids[:, 1:]
        elif targets.shape != ids.shape:
            raise ShapeError("targets do not fit ids", got=str(targets.shape), expected=str(ids.shape))
        return readout_loss(
            self.stream(ids, train),
            self.embed.embedding if self.config.tie else self.head,
            targets,
            factor=self.config.readout_factor,
            soft_cap=self.config.soft_cap,
            ignore_index=IGNORED_TARGET,
        )


def params_of(config: MiniGPTConfig, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of `MiniGPT(config)` that hold these weights, in float32.

    Args:
        config: Of the model that they come from.
        weights: Arrays by the names of `tiebeam.zoo.minigpt`.

    Raises:
        InputError: They are of another config.
        ShapeError: Likewise.

    Example:
        >>> config = MiniGPTConfig(vocab=9, width=2, layers=0, heads=1, block_size=4, positions="none")
        >>> weights = {"embed.weight": np.eye(9, 2), "norm.weight": np.ones(2), "norm.bias": np.zeros(2)}
        >>> sorted(params_of(config, weights)["params"])
        ['embed', 'norm']
    """
    wanted = jax.eval_shape(MiniGPT(config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    check_weights({n: tuple(w.shape) for n, w in weights.items()}, _named(wanted["params"], lambda leaf: leaf.shape))
    tree: dict[str, Any] = {}
    for name, array in weights.items():
        *above, last = _place(name)
        place = tree
        for key in above:
            place = place.setdefault(key, {})
        place[last] = jnp.asarray(array.T if last == "kernel" else array, jnp.float32)
    return {"params": tree}


def weights_of(params: Mapping[str, Any]) -> Weights:
    """Return copies of every weight, float32, by the names of `tiebeam.zoo.minigpt`."""
    return _named(params["params"], lambda leaf: np.array(leaf, np.float32))


def _place(name: str) -> tuple[str, ...]:
    """Where linen keeps the weight that PyTorch calls `name`."""
    *above, last = name.replace("blocks.", "blocks_").split(".")
    if above == ["embed"]:
        return ("embed", "embedding")
    if above in (["positions"], ["head"]):
        return tuple(above)
    if last == "bias":
        return (*above, "bias")
    return (*above, "scale" if above[-1].endswith("norm") else "kernel")


def _named(tree: Mapping[str, Any], of: Any) -> dict[str, Any]:
    """What `of` makes of each leaf, by PyTorch's names; kernels turned to (fan out, fan in)."""
    found = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        keys = [step.key for step in path]
        value = of(leaf)
        if keys[-1] == "kernel":
            value = tuple(reversed(value)) if isinstance(value, tuple) else value.T.copy()
        above = keys if len(keys) == 1 else keys[:-1]
        name = ".".join(above).replace("blocks_", "blocks.")
        found[f"{name}.bias" if len(keys) > 1 and keys[-1] == "bias" else f"{name}.weight"] = value
    return found


def _linear(config: MiniGPTConfig, out: int, fan_in: int, name: str, *, writes: bool = False) -> nn.Dense:
    std = config.linear_std(fan_in, writes=writes)
    return nn.Dense(out, use_bias=config.bias, kernel_init=nn.initializers.normal(std), name=name)


def _norm(name: str | None) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=NORM_EPSILON, use_fast_variance=False, name=name)


def _check_kind(ids: Any) -> None:
    if not jnp.issubdtype(ids.dtype, jnp.integer) or ids.ndim != 2:
        raise InputError(
            "ids of MiniGPT",
            got=f"{ids.dtype} of shape {ids.shape}",
            expected="integers of shape (batch, tokens)",
            hint="add a batch axis with ids[None]" if ids.ndim == 1 else "",
        )
