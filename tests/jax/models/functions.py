"""Functions of a params tree: every way to look up, multiply and read out that JAX programs use."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.jax.models.kit import VOCAB, WIDTH, Case, Truth, case, ids, layer_norm, normal

ROOT = math.sqrt(WIDTH)
THREE = jnp.float32(3.0)  # a constant array of the program, made once
QUARTER = np.float32(0.25)


def look(p: Any, tokens: Any) -> Any:
    return jnp.take(p["table"], tokens, axis=0)


def body(p: Any, x: Any) -> Any:
    return layer_norm(x + jnp.tanh(x @ p["mid"]))


def read(p: Any, h: Any) -> Any:
    return h @ p["table"].T


def params(**more: Any) -> dict[str, Any]:
    return {"table": normal(0, VOCAB, WIDTH), "mid": normal(1, WIDTH, WIDTH), **more}


def on(
    name: str,
    *,
    look: Any = look,
    body: Any = body,
    read: Any = read,
    more: Any = None,
    inputs: Any = None,
    table: str = "table",
    staged: bool = True,
    **facts: Any,
) -> None:
    """Register a function made of three stages."""

    def build() -> Case:
        tree = params(**(more() if more else {}))

        def model(p: Any, tokens: Any) -> Any:
            return read(p, body(p, look(p, tokens)))

        def moved(delta: Any) -> Any:
            return {**tree, table: tree[table] + delta}

        return Case(
            model, tree, (ids(),) if inputs is None else inputs(), Truth(**facts), tree, look, body, read, moved
        )

    case(build, name, staged=staged)


# -- looking up --
on("take")
on("indexing", look=lambda p, t: p["table"][t])
on("at_get", look=lambda p, t: p["table"].at[t].get(mode="clip"))
on("take_clipped", look=lambda p, t: jnp.take(p["table"], t, axis=0, mode="clip"))
on("one_hot", look=lambda p, t: jax.nn.one_hot(t, VOCAB) @ p["table"])
on("rows_of_eye", look=lambda p, t: (jnp.eye(VOCAB) * 2.0)[t] @ p["table"], lookup_factor=2.0)
on("one_hot_einsum", look=lambda p, t: jnp.einsum("btv,vd->btd", jax.nn.one_hot(t, VOCAB), p["table"]))
on("vmapped_rows", look=lambda p, t: jax.vmap(jax.vmap(lambda i: p["table"][i]))(t))
on(
    "vmapped_dynamic_slice",
    look=lambda p, t: jax.vmap(jax.vmap(lambda i: jax.lax.dynamic_index_in_dim(p["table"], i, 0, keepdims=False)))(t),
)
on("lookup_in_a_map", look=lambda p, t: jax.lax.map(lambda row: p["table"][row], t))
on(
    "positions_added",
    look=lambda p, t: p["table"][t] * 2 + p["positions"][jnp.arange(t.shape[1])],
    lookup_factor=2.0,
    more=lambda: {"positions": normal(5, 5, WIDTH)},
)
on(
    "width_first",
    look=lambda p, t: p["wide"].T[t],
    read=lambda p, h: h @ p["wide"],
    names=("wide",),
    vocab_axis=1,
    more=lambda: {"wide": normal(0, WIDTH, VOCAB)},
    table="wide",
)
on("padding_masked", look=lambda p, t: jnp.where((t == 0)[..., None], 0.0, p["table"][t]))
on(
    "mixed_precision",
    look=lambda p, t: p["table"].astype(jnp.bfloat16)[t].astype(jnp.float32),
    rel=1e-2,
    read=lambda p, h: jnp.dot(h.astype(jnp.bfloat16), p["table"].T.astype(jnp.bfloat16)).astype(jnp.float32),
)

# -- factors --
on("some_multiplied", look=lambda p, t: look(p, t).at[:, 0].multiply(3.0), lookup_factor=None, staged=False)
on("number", look=lambda p, t: look(p, t) * 3.0, lookup_factor=3.0)
on("root_by_jnp", look=lambda p, t: look(p, t) * jnp.sqrt(WIDTH), lookup_factor=ROOT)
on("root_under_jit", look=jax.jit(lambda p, t: look(p, t) * jnp.sqrt(p["table"].shape[1])), lookup_factor=ROOT)
on(
    "root_cast",
    look=lambda p, t: look(p, t) * jnp.asarray(ROOT, jnp.bfloat16).astype(jnp.float32),
    lookup_factor=2.828125,
)
on("numpy_scalar", look=lambda p, t: look(p, t) * np.float32(2.5), lookup_factor=2.5)
on("constant_array", look=lambda p, t: look(p, t) * THREE, lookup_factor=3.0)
on(
    "constant_in_two_jits",
    look=jax.jit(lambda p, t: look(p, t) * THREE),
    lookup_factor=3.0,
    read=jax.jit(lambda p, h: read(p, h) * THREE),
    readout_factor=3.0,
)
on(
    "constant_under_scan",
    look=lambda p, t: jax.lax.scan(lambda c, r: (c, p["table"][r] * THREE), 0, t)[1],
    lookup_factor=3.0,
)
on(
    "factor_in_params",
    look=lambda p, t: look(p, t) * p["by"],
    more=lambda: {"by": jnp.float32(1.75)},
    lookup_factor=1.75,
)
on(
    "exp_of_a_parameter",
    read=lambda p, h: read(p, h) * jnp.exp(p["by"]),
    more=lambda: {"by": jnp.float32(0.3)},
    readout_factor=float(np.exp(np.float32(0.3))),
)
on("full_vector", look=lambda p, t: look(p, t) * jnp.full((WIDTH,), 1.5), lookup_factor=1.5)
on(
    "divided",
    look=lambda p, t: look(p, t) / 4,
    read=lambda p, h: read(p, h) / 10,
    lookup_factor=0.25,
    readout_factor=0.1,
)
on("negative", read=lambda p, h: -read(p, h), readout_factor=-1.0)
on("sum_with_itself", look=lambda p, t: (lambda x: x + 0.5 * x)(look(p, t)), lookup_factor=1.5)
on("hidden_scaled", read=lambda p, h: read(p, h * WIDTH**-0.5), readout_factor=1 / ROOT)
on("table_scaled", read=lambda p, h: h @ (p["table"].T * QUARTER), readout_factor=0.25)
on(
    "everywhere",
    look=lambda p, t: look(p, t) * 2.0 / 8.0,
    lookup_factor=0.25,
    read=lambda p, h: 3 * ((h * 0.5) @ (2 * p["table"].T)),
    readout_factor=3.0,
)
on("computed_constant", look=lambda p, t: look(p, t) * jnp.linspace(1.0, 3.0, 41).mean(), lookup_factor=2.0)
on(
    "of_a_leaf",
    look=lambda p, t: look(p, t) * jnp.sqrt(jnp.mean(p["mid"] ** 2)),
    staged=False,
    lookup_factor=float(jnp.sqrt(jnp.mean(normal(1, WIDTH, WIDTH) ** 2))),
)
on("length_is_no_constant", look=lambda p, t: look(p, t) * t.shape[1] ** 0.5, lookup_factor=None, staged=False)
on(
    "dropout",
    look=lambda p, t: (lambda x: jnp.where(jax.random.bernoulli(jax.random.key(0), 0.9, x.shape), x / 0.9, 0.0))(
        look(p, t) * 2.0
    ),
    lookup_factor=2.0,
    staged=False,
)

# -- reading out --
on("einsum", read=lambda p, h: jnp.einsum("btd,vd->btv", h, p["table"]))
on("dot_general", read=lambda p, h: jax.lax.dot_general(h, p["table"], (((2,), (1,)), ((), ()))))
on("broadcast_and_sum", read=lambda p, h: (h[..., None, :] * p["table"]).sum(-1))
on("chunks_by_map", read=lambda p, h: jax.lax.map(lambda row: row @ p["table"].T, h))
on(
    "chunks_by_scan",
    read=lambda p, h: jax.lax.scan(lambda c, row: (c, row @ p["table"].T * 2.0), 0, h)[1],
    readout_factor=2.0,
)
on("vmapped_readout", read=lambda p, h: jax.vmap(jax.vmap(lambda v: p["table"] @ v))(h))
on("last_position", read=lambda p, h: h[:, -1] @ p["table"].T)
on(
    "biased",
    read=lambda p, h: read(p, h) * 2.0 + p["bias"],
    more=lambda: {"bias": normal(7, VOCAB)},
    readout_bias=True,
    readout_factor=2.0,
)
on("masked_logits", read=lambda p, h: jnp.where(jnp.arange(VOCAB) < 30, read(p, h), -1e9), staged=False)
on("capped", read=lambda p, h: 30.0 * jnp.tanh(read(p, h) / 30.0), soft_cap=30.0)
on("capped_and_scaled", read=lambda p, h: 20.0 * jnp.tanh(read(p, h) * 0.5 / 10.0), soft_cap=20.0, readout_factor=1.0)
on(
    "capped_by_sigmoid",
    read=lambda p, h: 60.0 * (jax.nn.sigmoid(read(p, h) / 15.0) - 0.5),
    soft_cap=30.0,
    readout_factor=1.0,
)
on("log_probabilities", read=lambda p, h: jax.nn.log_softmax(read(p, h) * 0.5), readout_factor=0.5, staged=False)
on(
    "untied",
    read=lambda p, h: h @ p["head"],
    more=lambda: {"head": normal(9, WIDTH, VOCAB)},
    names=("table",),
    state="untied",
    readout_factor=None,
    partner="head",
    counts=(1, 0, 0),
    staged=False,
    normalized=False,
)
on(
    "same_array_twice",
    read=lambda p, h: h @ p["head"].T,
    more=lambda: {"head": normal(0, VOCAB, WIDTH)},
    state="copy",
    readout_factor=None,
    partner="head",
    counts=(1, 0, 0),
    staged=False,
    normalized=False,
)
on(
    "drifted",
    read=lambda p, h: h @ p["head"].T,
    state="drifted",
    readout_factor=None,
    partner="head",
    counts=(1, 0, 0),
    staged=False,
    normalized=False,
    more=lambda: {"head": normal(0, VOCAB, WIDTH) + normal(4, VOCAB, WIDTH, std=0.03)},
)
on("cut_readout", read=lambda p, h: h @ jax.lax.stop_gradient(p["table"]).T, state="cut", staged=False)
on("cut_lookup", look=lambda p, t: jax.lax.stop_gradient(look(p, t)), state="cut", staged=False)
