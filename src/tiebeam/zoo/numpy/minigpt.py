"""One pass of a MiniGPT, written out in float64: what it is in every framework is held against this."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tiebeam.zoo.minigpt import IGNORED_TARGET, NORM_EPSILON, ROTARY_BASE, MiniGPTConfig

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]
Arrays = Mapping[str, npt.NDArray[np.floating]]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def logits(config: MiniGPTConfig, weights: Arrays, ids: Ints) -> Floats:
    """Return the logits of the next token at every position, without dropout.

    Args:
        config: Sizes and factors.
        weights: By the names of `tiebeam.zoo.minigpt`.
        ids: (batch, tokens), integers within the table.

    Returns:
        (batch, tokens, vocab). Unit: nats.

    Example:
        >>> table = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> config = MiniGPTConfig(vocab=3, width=2, layers=0, heads=1, block_size=4, positions="none")
        >>> weights = {"embed.weight": table, "norm.weight": np.ones(2), "norm.bias": np.zeros(2)}
        >>> logits(config, weights, np.array([[0, 2]])).round(2).tolist()
        [[[1.0, 2.0, -1.0], [-1.0, -2.0, 1.0]]]
    """
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["embed.weight"][ids] * config.lookup_factor
    if config.positions == "learned":
        x = x + w["positions.weight"][: ids.shape[1]]
    for layer in range(config.layers):
        name = f"blocks.{layer}"
        x = x + _attention(config, w, f"{name}.attention", _norm(w, f"{name}.attention_norm", x))
        h = _linear(w, f"{name}.feed_forward.expand", _norm(w, f"{name}.feed_forward_norm", x))
        x = x + _linear(w, f"{name}.feed_forward.project", h * 0.5 * (1.0 + _erf(h / math.sqrt(2.0))))
    readout = w["embed.weight" if config.tie else "head.weight"]
    z: Floats = _norm(w, "norm", x) @ readout.T * config.readout_factor
    return z if config.soft_cap is None else config.soft_cap * np.tanh(z / config.soft_cap)


def loss(config: MiniGPTConfig, weights: Arrays, ids: Ints, targets: Ints | None = None) -> float:
    """Return the mean cross entropy of the targets that are not -100; None: `ids` shifted by one. Unit: nats."""
    if targets is None:
        ids, targets = ids[:, :-1], ids[:, 1:]
    z = logits(config, weights, ids)
    log_p = z - z.max(-1, keepdims=True)
    log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
    counted = targets != IGNORED_TARGET
    chosen = np.take_along_axis(log_p, np.where(counted, targets, 0)[..., None], -1)[..., 0]
    return float(-chosen[counted].mean())


def _linear(w: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def _norm(w: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    centred = x - x.mean(-1, keepdims=True)
    size = np.sqrt(np.mean(centred**2, -1, keepdims=True) + NORM_EPSILON)
    normed: Floats = centred / size * w[f"{name}.weight"] + w[f"{name}.bias"]
    return normed


def _attention(config: MiniGPTConfig, w: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    batch, tokens, width = x.shape
    channels = width // config.heads
    split = _linear(w, f"{name}.qkv", x).reshape(batch, tokens, 3, config.heads, channels)
    q, k, v = split.transpose(2, 0, 3, 1, 4)
    if config.positions == "rotary":
        q, k = _turned(q), _turned(k)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(channels)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = shares / shares.sum(-1, keepdims=True) @ v
    return _linear(w, f"{name}.project", mixed.swapaxes(1, 2).reshape(x.shape))


def _turned(x: Floats) -> Floats:
    """Turn channel i with channel i + channels / 2 of `x`, (..., tokens, channels), by an angle for each token."""
    tokens, channels = x.shape[-2:]
    rates = ROTARY_BASE ** (-2.0 * np.arange(channels // 2) / channels)
    angles = np.outer(np.arange(tokens), rates)
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
