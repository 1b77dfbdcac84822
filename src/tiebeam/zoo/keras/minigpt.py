"""MiniGPT in Keras, on any of its backends; with the same weights it is the model of `tiebeam.zoo.torch.minigpt`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from tiebeam.blocks.readout_loss.keras import readout_loss
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.zoo.minigpt import IGNORED_TARGET, NORM_EPSILON, ROTARY_BASE, MiniGPTConfig, Weights, check_weights

__all__ = ["MiniGPT", "assign_weights", "weights_of"]

PACKAGE = "tiebeam.zoo"


def turned(x: Any) -> Any:
    """Turn `x`, (batch, tokens, heads, channels), pairing channel i with channel i + channels / 2; in float32."""
    channels = x.shape[3]
    rates = ROTARY_BASE ** (-2.0 * np.arange(channels // 2) / channels)
    at = ops.cast(ops.arange(ops.shape(x)[1]), "float32")
    angles = at[:, None, None] * ops.convert_to_tensor(rates, "float32")
    cos, sin = ops.cos(angles), ops.sin(angles)
    a, b = x[..., : channels // 2], x[..., channels // 2 :]
    return ops.cast(ops.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1), x.dtype)


class Attention(keras.layers.Layer):
    """Causal self-attention over `heads` heads."""

    def __init__(self, config: MiniGPTConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        policy = self.dtype_policy
        self.qkv = _linear(config, 3 * config.width, config.width, "qkv", policy)
        self.project = _linear(config, config.width, config.width, "project", policy, writes=True)
        self.drop = keras.layers.Dropout(config.dropout, dtype=policy)

    def build(self, shape: Any) -> None:
        """Make the weights."""
        self.qkv.build(shape)
        self.project.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        """Mix the tokens of `x`, (batch, tokens, width), each with those before it and itself."""
        c, (batch, tokens) = self.config, ops.shape(x)[:2]
        channels = c.width // c.heads
        split = ops.reshape(self.qkv(x), (batch, tokens, 3, c.heads, channels))
        q, k, v = split[:, :, 0], split[:, :, 1], split[:, :, 2]
        if c.positions == "rotary":
            q, k = turned(q), turned(k)
        scores = ops.einsum("bqhc,bkhc->bhqk", q, k) / math.sqrt(channels)
        at = ops.arange(tokens)
        scores = ops.where(at[:, None] >= at[None, :], scores, -math.inf)
        shares = self.drop(ops.softmax(scores, axis=-1), training=training)
        mixed = ops.einsum("bhqk,bkhc->bqhc", shares, v)
        return self.project(ops.reshape(mixed, (batch, tokens, c.width)))


class FeedForward(keras.layers.Layer):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: MiniGPTConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        policy = self.dtype_policy
        self.expand = _linear(config, config.hidden_width, config.width, "expand", policy)
        self.project = _linear(config, config.width, config.hidden_width, "project", policy, writes=True)

    def build(self, shape: Any) -> None:
        """Make the weights."""
        self.expand.build(shape)
        self.project.build((*shape[:-1], self.expand.units))

    def call(self, x: Any) -> Any:
        """Map every token of `x`, (..., width), by itself."""
        return self.project(ops.gelu(self.expand(x), approximate=False))


class Block(keras.layers.Layer):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`."""

    def __init__(self, config: MiniGPTConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        policy = self.dtype_policy
        self.attention_norm = _norm("attention_norm", policy)
        self.attention = Attention(config, name="attention", dtype=policy)
        self.feed_forward_norm = _norm("feed_forward_norm", policy)
        self.feed_forward = FeedForward(config, name="feed_forward", dtype=policy)
        self.drop = keras.layers.Dropout(config.dropout, dtype=policy)

    def build(self, shape: Any) -> None:
        """Make the weights."""
        for part in (self.attention_norm, self.attention, self.feed_forward_norm, self.feed_forward):
            part.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        """Return the stream after this block, (batch, tokens, width)."""
        x = x + self.drop(self.attention(self.attention_norm(x), training=training), training=training)
        return x + self.drop(self.feed_forward(self.feed_forward_norm(x)), training=training)


@keras.saving.register_keras_serializable(package=PACKAGE)
class MiniGPT(keras.Model):
    """A pre-norm GPT; one variable serves lookup and readout, where the config ties them.

    Args:
        config: Sizes and scales.
        **kwargs: `name`, `dtype` (a policy).

    Example:
        >>> model = MiniGPT(MiniGPTConfig(vocab=100, width=32, layers=0, heads=4, block_size=16))
        >>> ids = np.array([[10, 25, 31]])
        >>> tuple(model(ids).shape), tuple(model.token_loss(ids).shape)
        ((1, 3, 100), ())
        >>> [v.path for v in model.variables if v.shape[0] == 100]
        ['mini_gpt/embed/embeddings']
    """

    def __init__(self, config: MiniGPTConfig, **kwargs: Any) -> None:
        super().__init__(**{"name": "mini_gpt", **kwargs})
        self.config, policy = config, self.dtype_policy
        normal = keras.initializers.RandomNormal(stddev=config.lookup_std)
        self.embed = keras.layers.Embedding(config.vocab, config.width, normal, name="embed", dtype=policy)
        self.drop = keras.layers.Dropout(config.dropout, dtype=policy)
        self.blocks = [Block(config, name=f"blocks_{layer}", dtype=policy) for layer in range(config.layers)]
        self.norm = _norm("norm", policy)

    def build(self, ids_shape: Any) -> None:
        """Make every weight; the readout's own table only where it has one."""
        c, normal = self.config, keras.initializers.RandomNormal
        stream = (*ids_shape, c.width)
        self.embed.build(ids_shape)
        for part in (*self.blocks, self.norm):
            part.build(stream)
        if c.positions == "learned":
            shape = (c.block_size, c.width)
            self.positions = self.add_weight(name="positions", shape=shape, initializer=normal(stddev=c.position_std))
        if not c.tie:
            shape = (c.vocab, c.width)
            self.head = self.add_weight(name="head", shape=shape, initializer=normal(stddev=c.own_readout_std))
        self.built = True

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Return the logits of the next token at every position.

        Args:
            ids: (batch, tokens), integers, at most `block_size` tokens.
            training: Whether dropout acts.

        Returns:
            (batch, tokens, vocab). Unit: nats.

        Raises:
            InputError: `ids` are no integers of rank 2.
            RangeError: More tokens than `block_size`.
        """
        c, hidden = self.config, self.stream(ids, training)
        logits = ops.einsum("btd,vd->btv", hidden, ops.cast(self._readout_table, hidden.dtype))
        logits = logits if c.readout_factor == 1.0 else logits * c.readout_factor
        return logits if c.soft_cap is None else c.soft_cap * ops.tanh(logits / c.soft_cap)

    def stream(self, ids: Any, training: bool | None = None) -> Any:
        """Return what the readout reads, (batch, tokens, width): `call` without its last product."""
        c, ids = self.config, ops.convert_to_tensor(ids)
        _check_kind(ids)
        if ids.shape[1] is not None and ids.shape[1] > c.block_size:
            raise RangeError(
                "more tokens than the model can read",
                got=f"ids of shape {tuple(ids.shape)}",
                expected=f"at most {c.block_size} tokens (block_size)",
                hint="cut the sequence, or choose a larger block_size",
            )
        x = self.embed(ids)
        x = x if c.lookup_factor == 1.0 else x * c.lookup_factor
        if c.positions == "learned":
            x = x + ops.cast(self.positions[: ops.shape(ids)[1]], x.dtype)
        x = self.drop(x, training=training)
        for block in self.blocks:
            x = block(x, training=training)
        return self.norm(x)

    def token_loss(self, ids: Any, targets: Any = None, training: bool | None = None) -> Any:
        """Return the mean cross entropy of the targets that are not -100, without holding the logits.

        Args:
            ids: (batch, tokens).
            targets: (batch, tokens), the right next token at each position. None: `ids` themselves are
                shifted by one, and may hold one token more than `block_size`.
            training: Whether dropout acts.

        Returns:
            A scalar. Unit: nats.

        Raises:
            InputError: As `call`; one token alone and no targets.
            ShapeError: `targets` and `ids` differ in shape.
        """
        ids = ops.convert_to_tensor(ids)
        _check_kind(ids)
        if targets is None:
            if ids.shape[1] is not None and ids.shape[1] < 2:
                raise InputError(
                    "one token has no next token", got=f"ids of shape {tuple(ids.shape)}", hint="pass targets"
                )
            ids, targets = ids[:, :-1], ids[:, 1:]
        elif tuple(targets.shape) != tuple(ids.shape):
            raise ShapeError("targets do not fit ids", got=str(tuple(targets.shape)), expected=str(tuple(ids.shape)))
        if not self.built:
            self.build(tuple(ids.shape))
        return readout_loss(
            self.stream(ids, training),
            self._readout_table,
            targets,
            factor=self.config.readout_factor,
            soft_cap=self.config.soft_cap,
            ignore_index=IGNORED_TARGET,
        )

    @property
    def _readout_table(self) -> Any:
        return self.embed.embeddings if self.config.tie else self.head

    def get_config(self) -> dict[str, Any]:
        """What makes it again."""
        policy = keras.saving.serialize_keras_object(self.dtype_policy)
        return {"name": self.name, "dtype": policy, "config": dataclasses.asdict(self.config)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "MiniGPT":
        """Make it again."""
        return cls(MiniGPTConfig(**config["config"]), name=config["name"], dtype=config.get("dtype"))


def assign_weights(model: MiniGPT, weights: Mapping[str, Any]) -> None:
    """Give `model` these weights; it is built where it was not.

    Args:
        model: Of the config of the model that the weights come from.
        weights: Arrays by the names of `tiebeam.zoo.minigpt`.

    Raises:
        InputError: They are of another config; the model's values are as they were.
        ShapeError: Likewise.
    """
    if not model.built:
        model.build((None, None))
    own = weights_of(model)
    check_weights({n: tuple(w.shape) for n, w in weights.items()}, {n: w.shape for n, w in own.items()})
    for name, variable, kernel in _variables(model):
        variable.assign(weights[name].T if kernel else weights[name])


def weights_of(model: MiniGPT) -> Weights:
    """Return copies of every weight, float32, by the names of `tiebeam.zoo.minigpt`; the model must be built.

    Example:
        >>> model = MiniGPT(MiniGPTConfig(vocab=9, width=8, layers=0, heads=2, block_size=4, tie=False))
        >>> model.build((None, None))
        >>> sorted(weights_of(model))
        ['embed.weight', 'head.weight', 'norm.bias', 'norm.weight', 'positions.weight']
    """
    found = {}
    for name, variable, kernel in _variables(model):
        array = np.array(ops.convert_to_numpy(variable.value), np.float32)
        found[name] = array.T.copy() if kernel else array
    return found


def _variables(model: MiniGPT) -> "list[tuple[str, keras.Variable, bool]]":
    """Every variable under PyTorch's name, and whether it is a kernel, which Keras keeps as (fan in, fan out)."""
    found = []
    for variable in model.variables:
        *above, last = variable.path.split("/")[1:]
        if not keras.backend.is_float_dtype(variable.dtype):
            continue  # the state of a dropout's generator
        if not above or last == "embeddings":
            found.append((f"{(above or [last])[0]}.weight", variable, False))
        else:
            name = ".".join(above).replace("blocks_", "blocks.")
            found.append((f"{name}.{'bias' if last in ('bias', 'beta') else 'weight'}", variable, last == "kernel"))
    return found


def _linear(
    config: MiniGPTConfig, out: int, fan_in: int, name: str, policy: Any, *, writes: bool = False
) -> keras.layers.Dense:
    normal = keras.initializers.RandomNormal(stddev=config.linear_std(fan_in, writes=writes))
    return keras.layers.Dense(out, use_bias=config.bias, kernel_initializer=normal, name=name, dtype=policy)


def _norm(name: str, policy: Any) -> keras.layers.LayerNormalization:
    return keras.layers.LayerNormalization(epsilon=NORM_EPSILON, name=name, dtype=policy)


def _check_kind(ids: Any) -> None:
    kind = keras.backend.standardize_dtype(ids.dtype)
    if "int" not in kind or len(ids.shape) != 2:
        raise InputError(
            "ids of MiniGPT",
            got=f"{kind} of shape {tuple(ids.shape)}",
            expected="integers of shape (batch, tokens)",
            hint="add a batch axis with ids[None]" if len(ids.shape) == 1 else "",
        )
