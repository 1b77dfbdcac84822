"""Ways in which a JAX program reads one table in two roles: ids, the lookup's table, the readout's table -> logits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

VOCAB, WIDTH = 40, 8

Read = Callable[[Any, Any, Any, Any], Any]


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


PARAMS = {"table": normal(0, VOCAB, WIDTH), "mid": 0.3 * normal(1, WIDTH, WIDTH)}
IDS = jnp.asarray(np.random.default_rng(2).integers(0, VOCAB, (2, 6)))


def body(h: Any, mid: Any) -> Any:
    h = jnp.tanh(h @ mid)
    return h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6)


def next_token_loss(logits: Any, ids: Any = IDS) -> Any:
    right = jax.nn.one_hot(ids[:, 1:], logits.shape[-1])
    return -(jax.nn.log_softmax(logits[:, :-1]) * right).sum(-1).mean()


def plain(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    return body(jnp.take(a, ids, axis=0), mid) @ b.T


def one_hot(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    return jnp.einsum("btd,vd->btv", body(jax.nn.one_hot(ids, VOCAB) @ a, mid), b)


def summed(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    return (body(a[ids], mid)[..., None, :] * b).sum(-1)


def under_jit(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    return jax.jit(lambda h, w: h @ w.T)(jax.jit(lambda t, m: body(t[ids], m))(a, mid), b)


def remat(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    return jax.checkpoint(lambda x, y: body(x[ids], mid) @ y.T)(a, b)


def scanned_layers(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    """A body of layers that knows nothing of the table."""
    h, _ = jax.lax.scan(lambda h, m: (h + body(h, m), None), a[ids], jnp.stack([mid, 2 * mid, -mid]))
    return h @ b.T


def read_in_a_scan(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    """Both roles within the rounds of a loop, which carries the table along."""

    def round_of(carry: Any, row: Any) -> Any:
        first, second = carry
        return carry, body(first[row], mid) @ second.T

    return jax.lax.scan(round_of, (a, b), ids)[1]


def vocabulary_in_pieces(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    h = body(a[ids], mid)
    pieces = jax.lax.map(lambda piece: h @ piece.T, b.reshape(4, -1, WIDTH))
    return jnp.moveaxis(pieces, 0, 2).reshape(*ids.shape, VOCAB)


def branches(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    h = body(a[ids], mid)
    return jax.lax.cond(ids[0, 0] > 3, lambda x: x @ b.T, lambda x: 2 * x @ b.T, h)


@jax.custom_vjp
def product(h: Any, w: Any) -> Any:
    return h @ w.T


def _product(h: Any, w: Any) -> Any:
    return h @ w.T, (h, w)


def _back(kept: Any, grad: Any) -> Any:
    h, w = kept
    return grad @ w, jnp.einsum("btv,btd->vd", grad, h)


product.defvjp(_product, _back)


def custom_head(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    return product(body(a[ids], mid), b)


@jax.custom_jvp
def looked(t: Any, ids: Any) -> Any:
    return t[ids]


@looked.defjvp
def _looked(primals: Any, tangents: Any) -> Any:
    (t, ids), (moved, _) = primals, tangents
    return t[ids], moved[ids]


def custom_lookup(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    return body(looked(a, ids), mid) @ b.T


def over_devices(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    mesh = Mesh(np.array(jax.devices()[:1]), ("model",))
    spec: Callable[..., Any] = PartitionSpec
    rows = spec("model", None)

    def local(ids: Any, first: Any, second: Any) -> Any:
        here = jax.lax.axis_index("model") * len(first)
        h = jax.lax.psum(jnp.where((ids >= here)[..., None], first[ids - here], 0), "model")
        return body(h, mid) @ second.T

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec(), rows, rows), out_specs=spec(None, None, "model"))
    return mapped(ids, a, b)


def twice(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    return body(a[ids] + a[ids[::-1]], mid) @ b.T


# One form of the table, made once and read in both roles.
def one_cast(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    first = a.astype(jnp.bfloat16)
    second = first if a is b else b.astype(jnp.bfloat16)
    return body(first[ids].astype(jnp.float32), mid) @ second.astype(jnp.float32).T


def one_transposition(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    first = 0.5 * a.T
    second = first if a is b else 0.5 * b.T
    return body(first[:, ids].transpose(1, 2, 0), mid) @ second


def one_sum(ids: Any, a: Any, b: Any, mid: Any) -> Any:
    first = a + a
    second = first if a is b else b + b
    return body(first[ids], mid) @ second.T


READS: tuple[Read, ...] = (
    plain, one_hot, summed, under_jit, remat, scanned_layers, read_in_a_scan, vocabulary_in_pieces, branches,
    custom_head, custom_lookup, over_devices, twice, one_cast, one_transposition, one_sum,
)  # fmt: skip


def tied(read: Read) -> Callable[[Any, Any], Any]:
    return lambda p, ids: read(ids, p["table"], p["table"], p["mid"])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def both(table: Any, ids: Any, times: tuple[float, float]) -> Any:
    """Lookup and head in one operation, written by hand: `times` of each path arrive."""
    return jnp.tanh(table[ids]) @ table.T


def _both(table: Any, ids: Any, times: tuple[float, float]) -> Any:
    return both(table, ids, times), (table, ids)


def _both_back(times: tuple[float, float], kept: Any, grad: Any) -> Any:
    table, ids = kept
    h = jnp.tanh(table[ids])
    sent = times[1] * jnp.einsum("btv,btd->vd", grad, h)
    return sent.at[ids].add(times[0] * (grad @ table) * (1 - h * h)), None


both.defvjp(_both, _both_back)
