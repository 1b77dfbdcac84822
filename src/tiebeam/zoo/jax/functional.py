"""A pre-norm GPT as one function of its params: the plainest way to write a language model in JAX."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tiebeam.zoo.schemes import Scheme, scheme

Params = dict[str, Any]


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """`x` over its own root mean square, times a gain for each feature.

    Source: Zhang & Sennrich 2019, arXiv 1910.07467.

    Example:
        >>> rms_norm(jnp.array([4.0, -4.0]), jnp.ones(2)).round(3).tolist()
        [1.0, -1.0]
    """
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * gain


@dataclass(frozen=True)
class FunctionalGpt:
    """`model(params, ids)`: logits `(batch, tokens, vocab)`.

    Attributes:
        vocab, width: Sizes of the table.
        layers: Blocks; their params are stacked and run by one scan.
        scheme: How the table is scaled; see `tiebeam.zoo.schemes`.
        soft_cap: Bound of the logits, or None.

    Example:
        >>> model = FunctionalGpt.of("C", vocab=50, width=16)
        >>> params = model.init(jax.random.key(0))
        >>> model(params, jnp.array([[1, 2, 3]])).shape
        (1, 3, 50)
    """

    vocab: int
    width: int
    scheme: Scheme
    layers: int = 2
    soft_cap: float | None = None

    @classmethod
    def of(cls, name: str, *, vocab: int, width: int, **more: Any) -> "FunctionalGpt":
        """The model of a scheme."""
        return cls(vocab, width, scheme(name), **more)

    def init(self, key: jax.Array, dtype: Any = jnp.float32) -> Params:
        """Draw params by the scheme; residual projections are smaller by `1/sqrt(2 * layers)`."""
        n, d = self.layers, self.width
        residual = 1 / math.sqrt(2 * max(n, 1))
        shapes = {
            "qkv": ((n, d, 3 * d), 1 / math.sqrt(d)),
            "mix": ((n, d, d), residual / math.sqrt(d)),
            "up": ((n, d, 4 * d), 1 / math.sqrt(d)),
            "down": ((n, 4 * d, d), residual / math.sqrt(4 * d)),
        }
        table, head, *keys = jax.random.split(key, 2 + len(shapes))
        blocks = {
            name: std * jax.random.normal(k, shape, dtype)
            for k, (name, (shape, std)) in zip(keys, shapes.items(), strict=True)
        }
        blocks |= {"attention_gain": jnp.ones((n, d), dtype), "mlp_gain": jnp.ones((n, d), dtype)}
        params: Params = {
            "table": self.scheme.table_std(d) * jax.random.normal(table, (self.vocab, d), dtype),
            "blocks": blocks,
            "gain": jnp.ones(d, dtype),
        }
        if self.scheme.readout_std is not None:
            params["head"] = self.scheme.readout_std(d) * jax.random.normal(head, (self.vocab, d), dtype)
        return params

    def __call__(self, params: Params, ids: jax.Array) -> jax.Array:
        """Logits of token ids `(batch, tokens)`."""
        x = params["table"][ids] * self.scheme.lookup_factor(self.width)
        x, _ = jax.lax.scan(self._block, x, params["blocks"])
        logits = rms_norm(x, params["gain"]) @ params["table" if self.scheme.tie else "head"].T
        logits = logits * self.scheme.readout_factor(self.width)
        return logits if self.soft_cap is None else self.soft_cap * jnp.tanh(logits / self.soft_cap)

    def _block(self, x: jax.Array, block: Params) -> tuple[jax.Array, None]:
        q, k, v = jnp.split(rms_norm(x, block["attention_gain"]) @ block["qkv"], 3, axis=-1)
        seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        scores = jnp.where(seen, q @ k.swapaxes(-1, -2) / math.sqrt(self.width), -jnp.inf)
        x = x + jax.nn.softmax(scores, axis=-1) @ v @ block["mix"]
        return x + jax.nn.gelu(rms_norm(x, block["mlp_gain"]) @ block["up"]) @ block["down"], None
