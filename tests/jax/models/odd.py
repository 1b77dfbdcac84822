"""Programs that are seldom written and right all the same: where a trace that looks at shapes or names goes wrong."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from tests.jax.models.functions import body, look, on, read
from tests.jax.models.kit import VOCAB, WIDTH, Case, Truth, case, ids, normal, rms_norm

ROOT = math.sqrt(WIDTH)
TWO = jnp.float32(2.0)

# -- loops: a number that a round changes is no constant --
on(
    "fori_counter_multiplies_the_logits",
    read=lambda p, h: jax.lax.fori_loop(
        0, 3, lambda i, z: z + read(p, h) * (i + 1).astype(jnp.float32), jnp.zeros((*h.shape[:-1], VOCAB))
    ),
    readout_factor=None,
    staged=False,
)
on(
    "while_counter_multiplies_the_logits",
    read=lambda p, h: jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, read(p, h) * s[0]), (1.0, jnp.zeros((*h.shape[:-1], VOCAB)))
    )[1],
    readout_factor=None,
    staged=False,
)
on(
    "scan_counter_multiplies_the_logits",
    read=lambda p, h: jax.lax.scan(lambda c, _: (c + 1.0, read(p, h) * c), 1.0, None, length=3)[1],
    readout_factor=None,
    staged=False,
)
on(
    "scan_without_a_counter",
    read=lambda p, h: jax.lax.scan(lambda c, _: (c, read(p, h) * c), 1.5, None, length=3)[1][0],
    readout_factor=1.5,
)


@case
def decoding_into_a_buffer() -> Case:
    """Logits are written into what a loop carries, one position a round."""

    def model(p: Any, tokens: Any) -> Any:
        def step(i: Any, logits: Any) -> Any:
            now = jax.lax.dynamic_slice_in_dim(tokens, i, 1, 1)[:, 0]
            return logits.at[:, i].set(rms_norm(p["table"][now] * 2.0) @ p["table"].T)

        return jax.lax.fori_loop(0, tokens.shape[1], step, jnp.zeros((*tokens.shape, VOCAB)))

    tree = {"table": normal(0, VOCAB, WIDTH)}
    return Case(model, tree, (ids(),), Truth(lookup_factor=2.0, norm_after_lookup=True), tree)


# -- writing and cutting --
on("logits_overwritten_at_one_token", read=lambda p, h: read(p, h).at[..., 0].set(-1e9), staged=False)
on(
    "padding_row_overwritten",
    look=lambda p, t: p["table"].at[0].set(0.0)[jnp.maximum(t, 1)],
    read=lambda p, h: h @ p["table"].at[0].set(0.0).T * 2.0,
    readout_factor=2.0,
    staged=False,
)
on("clipped_ids", look=lambda p, t: p["table"][jnp.clip(t, 0, VOCAB - 1)])
on(
    "uniform_vector_among_the_params",
    look=lambda p, t: look(p, t) * p["by"],
    more=lambda: {"by": jnp.full((WIDTH,), 1.5)},
    lookup_factor=1.5,
)
on(
    "varied_vector_among_the_params",
    look=lambda p, t: look(p, t) * p["by"],
    more=lambda: {"by": jnp.linspace(0.5, 1.5, WIDTH)},
    lookup_factor=None,
    staged=False,
)

# -- nested programs: one array is one constant, in whichever of them --
on(
    "root_under_nested_jits",
    look=lambda p, t: jax.jit(jax.vmap(jax.jit(lambda x: x * jnp.sqrt(jnp.array(WIDTH, jnp.float32)))))(look(p, t)),
    lookup_factor=ROOT,
)
on(
    "constant_in_a_checkpoint_of_a_jit",
    look=jax.checkpoint(lambda p, t: jax.jit(lambda x: x * TWO)(look(p, t))),
    read=jax.checkpoint(lambda p, h: read(p, h) * TWO),
    lookup_factor=2.0,
    readout_factor=2.0,
)
on("switch_in_the_body", body=lambda p, x: body(p, jax.lax.switch(x.shape[0] - 1, [jnp.tanh, jnp.sin, jnp.cos], x)))
on(
    "attention_of_jax_nn",
    body=lambda p, x: (lambda h: body(p, x + jax.nn.dot_product_attention(h, h, h, is_causal=True)[:, :, 0]))(
        rms_norm(x)[:, :, None]
    ),
)
on(
    "associative_scan_in_the_body",
    body=lambda p, x: body(p, jax.lax.associative_scan(jnp.add, x, axis=1)),
)
on(
    "preferred_element_type",
    read=lambda p, h: (
        jax.lax.dot_general(h, p["table"], (((2,), (1,)), ((), ())), preferred_element_type=jnp.float32) * 0.5
    ),
    readout_factor=0.5,
)
on(
    "readout_as_the_transpose_of_a_lookup",
    read=lambda p, h: jax.vjp(lambda one_hot: one_hot @ p["table"], jnp.zeros((*h.shape[:-1], VOCAB)))[1](h)[0],
)


@jax.custom_vjp
def product(h: Any, table: Any) -> Any:
    return h @ table.T


product.defvjp(
    lambda h, table: (h @ table.T, (h, table)),
    lambda kept, g: (g @ kept[1], jnp.einsum("...v,...d->vd", g, kept[0])),
)
on("readout_with_a_gradient_of_its_own", read=lambda p, h: product(h, p["table"]) * 0.5, readout_factor=0.5)


@case
def value_and_gradient() -> Case:
    def model(p: Any, tokens: Any) -> Any:
        def loss(p: Any) -> Any:
            logits = rms_norm(p["table"][tokens] * 2.0) @ p["table"].T
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1).mean()

        return jax.value_and_grad(loss)(p)

    tree = {"table": normal(0, VOCAB, WIDTH)}
    return Case(model, tree, (ids(),), Truth(lookup_factor=2.0, norm_after_lookup=None), tree)
