"""Functions of a params tree: bodies, losses, loops and the inputs that programs take."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from tests.jax.models.functions import ROOT, body, look, on, params, read
from tests.jax.models.kit import VOCAB, WIDTH, Case, Truth, case, ids, layer_norm, normal, rms_norm

# -- bodies --
on("checkpointed", body=jax.checkpoint(body), read=jax.checkpoint(read))
on("jitted_layers", body=lambda p, x: jax.jit(partial(body, p))(jax.jit(partial(body, p))(x)))
on(
    "scanned_layers",
    more=lambda: {"layers": normal(6, 3, WIDTH, WIDTH)},
    body=lambda p, x: rms_norm(jax.lax.scan(lambda h, w: (h + jnp.tanh(rms_norm(h) @ w), None), x, p["layers"])[0]),
)
on(
    "scanned_post_norm",
    more=lambda: {"layers": normal(6, 3, WIDTH, WIDTH)},
    body=lambda p, x: jax.lax.scan(lambda h, w: (rms_norm(h + jnp.tanh(h @ w)), None), x, p["layers"])[0],
)
on(
    "cond_in_the_body",
    body=lambda p, x: body(p, jax.lax.cond(x.sum() > 1e9, lambda v: jnp.sin(v), lambda v: v + 1.0, x)),
)
on(
    "norm_after_lookup",
    look=lambda p, t: look(p, t) * 6.0,
    body=lambda p, x: body(p, rms_norm(x)),
    lookup_factor=6.0,
    norm_after_lookup=True,
)
on("no_norm", body=lambda p, x: x + jnp.tanh(x @ p["mid"]), normalized=False)


@jax.custom_vjp
def straight(x: Any) -> Any:
    return x


straight.defvjp(lambda x: (x, None), lambda _, g: (g,))


@jax.custom_jvp
def twice(x: Any) -> Any:
    return 2.0 * x


twice.defjvps(lambda g, _, x: 2.0 * g)

on("custom_derivatives", look=lambda p, t: twice(straight(look(p, t))), lookup_factor=2.0)


@case
def loss_by_take_along_axis() -> Case:
    """A model that returns its loss alone."""

    def model(p: Any, tokens: Any) -> Any:
        logp = jax.nn.log_softmax(read(p, body(p, look(p, tokens))))
        return -jnp.take_along_axis(logp[:, :-1], tokens[:, 1:, None], axis=-1).mean()

    tree = params()
    return Case(model, tree, (ids(),), Truth(), tree)


@case
def loss_by_indexing() -> Case:
    def model(p: Any, tokens: Any) -> Any:
        logp = jax.nn.log_softmax(read(p, body(p, look(p, tokens))))[:, :-1].reshape(-1, VOCAB)
        return -logp[jnp.arange(logp.shape[0]), tokens[:, 1:].reshape(-1)].mean()

    tree = params()
    return Case(model, tree, (ids(),), Truth(), tree)


@case
def loss_by_one_hot() -> Case:
    def model(p: Any, tokens: Any) -> Any:
        logp = jax.nn.log_softmax(read(p, body(p, look(p, tokens))))
        return -(logp[:, :-1] * jax.nn.one_hot(tokens[:, 1:], VOCAB)).sum(-1).mean()

    tree = params()
    return Case(model, tree, (ids(),), Truth(), tree)


@case
def generation_in_a_while_loop() -> Case:
    """Greedy decoding: the loop's body looks up and reads out."""

    def model(p: Any, tokens: Any) -> Any:
        def step(state: Any) -> Any:
            i, last, _ = state
            logits = read(p, body(p, look(p, last)))
            return i + 1, jnp.argmax(logits, -1), logits

        return jax.lax.while_loop(lambda s: s[0] < 3, step, (0, tokens, jnp.zeros((*tokens.shape, VOCAB))))[2]

    tree = params()
    return Case(model, tree, (ids(),), Truth(), tree)


@case
def carry_that_shrinks() -> Case:
    """A scan multiplies what it carries, once a round."""

    def model(p: Any, tokens: Any) -> Any:
        h = jax.lax.scan(lambda x, _: (x * 0.5, None), look(p, tokens), None, length=3)[0]
        return read(p, layer_norm(h))

    tree = params()
    return Case(model, tree, (ids(),), Truth(lookup_factor=0.125, norm_after_lookup=True), tree)


@case
def nested_params_and_static_leaves() -> Case:
    """Flags, None and strings among the params stay what they are."""

    def model(p: Any, tokens: Any) -> Any:
        x = p["embed"]["table"][tokens] * (2.0 if p["flags"]["double"] else 1.0)
        assert p["flags"]["kind"] == "tied"
        assert p["nothing"] is None
        return layer_norm(x) @ p["embed"]["table"].T

    tree = {"embed": {"table": normal(0, VOCAB, WIDTH)}, "flags": {"double": True, "kind": "tied"}, "nothing": None}
    truth = Truth(("embed.table",), lookup_factor=2.0, norm_after_lookup=True)
    return Case(model, tree, (ids(),), truth, tree)


@case
def list_of_tables_and_a_dropout_key() -> Case:
    def model(p: Any, tokens: Any, *, key: Any, train: bool) -> Any:
        x = p[0][tokens] * 4.0
        if train:
            x = jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0.0)
        return layer_norm(x + jnp.tanh(x @ p[1])) @ p[0].T

    tree = [normal(0, VOCAB, WIDTH), normal(1, WIDTH, WIDTH)]
    inputs = {"tokens": ids(), "key": jax.random.key(1), "train": True}
    return Case(model, tree, inputs, Truth(("0",), lookup_factor=4.0), tree)


@case
def abstract_params() -> Case:
    tree = jax.eval_shape(params)

    def model(p: Any, tokens: Any) -> Any:
        return read(p, body(p, look(p, tokens) * jnp.sqrt(WIDTH))) / 4

    return Case(model, tree, (ids(),), Truth(lookup_factor=ROOT, readout_factor=0.25), tree)


@case
def sharded_over_one_device() -> Case:
    """Vocabulary-parallel lookup and readout under shard_map, on the mesh there is."""
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((1,), ("model",))
    rows = PartitionSpec("model", None)

    def lookup(table: Any, tokens: Any) -> Any:
        start = jax.lax.axis_index("model") * table.shape[0]
        local = tokens - start
        ours = (local >= 0) & (local < table.shape[0])
        found = jnp.where(ours[..., None], table[jnp.where(ours, local, 0)], 0.0)
        return jax.lax.psum(found, "model")

    def model(p: Any, tokens: Any) -> Any:
        x = jax.shard_map(lookup, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=PartitionSpec())(
            p["table"], tokens
        )
        h = jax.lax.with_sharding_constraint(body(p, x * 3.0), NamedSharding(mesh, PartitionSpec()))
        out = PartitionSpec(None, None, "model")
        return jax.shard_map(lambda t, v: v @ t.T, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=out)(
            p["table"], h
        )

    tree = params()
    tree["table"] = jax.device_put(tree["table"], NamedSharding(mesh, rows))
    return Case(model, tree, (ids(),), Truth(lookup_factor=3.0), tree)


# -- odd primitives --
@jax.custom_batching.custom_vmap
def thrice(x: Any) -> Any:
    return x * 3.0


thrice.def_vmap(lambda size, batched, x: (x * 3.0, True))

on("custom_batching", look=lambda p, t: thrice(look(p, t)), lookup_factor=3.0)
on(
    "named_checkpoint",
    body=jax.checkpoint(
        lambda p, x: checkpoint_name(body(p, checkpoint_name(x, "rows")), "hidden"),
        policy=jax.checkpoint_policies.save_only_these_names("hidden"),
    ),
)
on(
    "by_platform",
    look=lambda p, t: jax.lax.platform_dependent(look(p, t), cpu=lambda x: x * 2.0, default=lambda x: x * 2.0),
    lookup_factor=2.0,
)
on("stacked_and_tiled", look=lambda p, t: jnp.stack([look(p, t)] * 2, 1)[:, 0] * 2.0, lookup_factor=2.0)
on(
    "branches_that_differ",
    look=lambda p, t: jax.lax.cond(t[0, 0] > 3, lambda x: x * 2.0, lambda x: x * 3.0, look(p, t)),
    lookup_factor=None,
    staged=False,
)
on(
    "known_branch",
    look=lambda p, t: jax.lax.cond(True, lambda x: x * 2.0, lambda x: x * 3.0, look(p, t)),
    lookup_factor=2.0,
)
on("random_mask_as_a_factor", body=lambda p, x: body(p, x * jax.random.bernoulli(jax.random.key(0), 0.9, x.shape)))
