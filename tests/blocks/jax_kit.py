"""What the files of linen, nnx and Equinox share."""

import jax
import jax.numpy as jnp
import numpy as np
from tests.blocks.reference import IDS


def loss(look_up, read_out, mixing, probe):
    """The reference's loss, of two functions."""
    return (read_out(look_up(jnp.asarray(IDS)) @ jnp.asarray(mixing)) * jnp.asarray(probe)).sum()


def norm(x):
    """A layer norm without weights."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def ids_of(*shape, vocab, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocab, shape), jnp.int32)


def results_as_large_as(jaxpr, size):
    """Primitives, nested ones too, whose result has at least so many elements."""
    found = []
    for equation in jaxpr.eqns:
        inner = [x for p in equation.params.values() for x in jax.tree.leaves(p, is_leaf=is_jaxpr) if is_jaxpr(x)]
        for x in inner:
            found += results_as_large_as(getattr(x, "jaxpr", x), size)
        if not inner and any(v.aval.size >= size for v in equation.outvars):
            found.append(equation.primitive.name)
    return found


def is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")
