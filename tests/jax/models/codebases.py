"""Programs as people write them in JAX: whole training and serving code bases in miniature."""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from tests.jax.models.kit import LENGTH, VOCAB, WIDTH, Case, Truth, case, ids, layer_norm, normal, rms_norm

ROOT = math.sqrt(WIDTH)


class Embedder(nn.Module):
    """A table with an encode and a decode of its own."""

    cap: float | None = None

    def setup(self) -> None:
        self.input_table = self.param("input_embedding", nn.initializers.normal(), (VOCAB, WIDTH))

    def encode(self, x: Any) -> Any:
        x = self.input_table[(x,)]
        x *= jnp.sqrt(WIDTH).astype(x.dtype)
        return x

    def decode(self, x: Any) -> Any:
        logits = jnp.dot(x, self.input_table.T)
        if self.cap is not None:
            logits = jnp.tanh(logits / self.cap) * self.cap
        return logits


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        q, k, v = (nn.DenseGeneral((2, WIDTH // 2), use_bias=False)(x) for _ in range(3))
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(WIDTH // 2)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        probs = jax.nn.softmax(jnp.where(mask, scores, -2e38), axis=-1)
        out = jnp.einsum("bhts,bshd->bthd", probs, v)
        return nn.DenseGeneral(WIDTH, axis=(-2, -1), use_bias=False)(out)


class DecoderBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x + Attention()(nn.RMSNorm()(x))
        h = nn.RMSNorm()(x)
        gate, up = nn.Dense(2 * WIDTH)(h), nn.Dense(2 * WIDTH)(h)
        return x + nn.RMSNorm()(nn.Dense(WIDTH)(nn.gelu(gate) * up))


class Decoder(nn.Module):
    """Embedder, blocks with norms before and after, a last norm, capped logits."""

    def setup(self) -> None:
        self.embedder = Embedder(cap=30.0)
        self.blocks = [DecoderBlock(name=f"layer_{i}") for i in range(2)]
        self.final_norm = nn.RMSNorm()

    def __call__(self, tokens: Any) -> Any:
        x = self.embedder.encode(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embedder.decode(self.final_norm(x))


@case
def embedder_with_encode_and_decode() -> Case:
    model = Decoder()
    variables = model.init(jax.random.key(0), ids())
    truth = Truth(("params.embedder.input_embedding",), lookup_factor=ROOT, soft_cap=30.0)
    return Case(model, variables, (ids(),), truth, variables)


@case
def apply_as_a_function() -> Case:
    """The bound method of a module, jitted, passed as a function of its variables."""
    model = Decoder()
    variables = model.init(jax.random.key(0), ids())
    truth = Truth(("params.embedder.input_embedding",), lookup_factor=ROOT, soft_cap=30.0)
    return Case(jax.jit(model.apply), variables, (ids(),), truth, variables)


@case
def half_precision_root_is_rounded() -> Case:
    """The number that multiplies is the one of the dtype: sqrt(8) is 2.828125 in bfloat16."""
    model = Decoder()
    variables = jax.tree.map(lambda a: a.astype(jnp.bfloat16), model.init(jax.random.key(0), ids()))
    truth = Truth(("params.embedder.input_embedding",), lookup_factor=2.828125, soft_cap=30.0)
    return Case(model, variables, (ids(),), truth, variables)


class OneHotEmbed(nn.Module):
    """Rows by a comparison with iota; logits divided by the root of the width."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        table = self.param("embedding", nn.initializers.normal(1.0), (VOCAB, WIDTH))
        iota = jax.lax.iota(jnp.int32, VOCAB)
        one_hot = jnp.array(tokens[..., jnp.newaxis] == iota, dtype=jnp.float32)
        y = jnp.dot(one_hot, table)
        y = nn.LayerNorm(use_bias=False)(y + nn.Dense(WIDTH)(nn.LayerNorm(use_bias=False)(y)))
        logits = jnp.dot(y, table.T)
        return logits / jnp.sqrt(y.shape[-1])


@case
def iota_embedding_and_divided_logits() -> Case:
    model = OneHotEmbed()
    variables = model.init(jax.random.key(0), ids())
    return Case(model, variables, (ids(),), Truth(("params.embedding",), readout_factor=1 / ROOT), variables)


class ScanBlock(nn.Module):
    @nn.compact
    def __call__(self, carry: Any, positions: Any) -> Any:
        x, total = carry
        x = x + nn.Dense(WIDTH)(nn.RMSNorm()(x) + jnp.sin(positions)[..., None])
        return (x, total + 1), jnp.abs(x).mean()


class Deep(nn.Module):
    """Layers under scan and remat, with a carry of two and a broadcast argument; logits beside statistics."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(VOCAB, WIDTH, name="wte")
        x = embed(tokens) + nn.Embed(LENGTH, WIDTH, name="wpe")(jnp.arange(tokens.shape[1])[None])
        block = nn.scan(
            nn.remat(ScanBlock, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=4,
        )
        (x, _), sizes = block(name="h")((x, 0), jnp.arange(tokens.shape[1], dtype=jnp.float32))
        return {"logits": embed.attend(nn.RMSNorm(name="ln_f")(x)), "sizes": sizes}


@case
def scan_of_remat_with_a_tuple() -> Case:
    model = Deep()
    variables = model.init(jax.random.key(0), ids())
    return Case(model, variables, (ids(),), Truth(("params.wte.embedding",)), variables)


def gpt(p: Any, tokens: Any) -> Any:
    """A GPT-2 in plain functions."""
    x = p["wte"][tokens] + p["wpe"][: tokens.shape[1]]
    for block in p["blocks"]:
        h = layer_norm(x) * block["g1"]
        q, k, v = jnp.split(h @ block["qkv"], 3, axis=-1)
        scores = jnp.where(jnp.tri(tokens.shape[1], dtype=bool), q @ k.swapaxes(-1, -2) / ROOT, -1e10)
        x = x + jax.nn.softmax(scores) @ v @ block["out"]
        x = x + jax.nn.gelu((layer_norm(x) * block["g2"]) @ block["up"]) @ block["down"]
    return (layer_norm(x) * p["g"] + p["b"]) @ p["wte"].T


def gpt_params() -> Any:
    def block(i: int) -> Any:
        return {
            "g1": jnp.ones(WIDTH),
            "g2": jnp.ones(WIDTH),
            "qkv": normal(i, WIDTH, 3 * WIDTH),
            "out": normal(i + 1, WIDTH, WIDTH),
            "up": normal(i + 2, WIDTH, 4 * WIDTH),
            "down": normal(i + 3, 4 * WIDTH, WIDTH),
        }

    return {
        "wte": normal(0, VOCAB, WIDTH),
        "wpe": normal(1, 16, WIDTH),
        "blocks": [block(10), block(20)],
        "g": jnp.ones(WIDTH),
        "b": jnp.zeros(WIDTH),
    }


@case
def gpt_in_functions() -> Case:
    tree = gpt_params()
    return Case(gpt, tree, (ids(),), Truth(("wte",)), tree)


@case
def vmapped_over_the_batch() -> Case:
    """Written for one sequence; vmap adds the batch."""
    tree = gpt_params()
    model = functools.partial(jax.vmap(lambda p, t: gpt(p, t[None])[0] * 0.5, in_axes=(None, 0)))
    return Case(model, tree, (ids(),), Truth(("wte",), readout_factor=0.5), tree)


@case
def chunked_loss_under_scan() -> Case:
    """Logits never exist as a whole: a scan over chunks adds up the loss of each."""

    def model(p: Any, tokens: Any) -> Any:
        x = p["wte"][tokens]
        h = rms_norm(x + jnp.tanh(x @ p["mid"])).reshape(-1, WIDTH)
        labels = jnp.roll(tokens, -1, axis=1).reshape(-1)

        @jax.checkpoint
        def chunk(total: Any, piece: Any) -> Any:
            x, y = piece
            logits = (x @ p["wte"].T).astype(jnp.float32) / 8.0
            picked = jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
            return total + (jax.nn.logsumexp(logits, axis=-1) - picked).sum(), None

        pieces = (h.reshape(tokens.shape[0], -1, WIDTH), labels.reshape(tokens.shape[0], -1))
        return jax.lax.scan(chunk, jnp.float32(0.0), pieces)[0] / labels.size

    tree = {"wte": normal(0, VOCAB, WIDTH), "mid": normal(1, WIDTH, WIDTH)}
    return Case(model, tree, (ids(),), Truth(("wte",), readout_factor=0.125), tree)


def loss_case(loss: Any) -> Case:
    tree = gpt_params()

    def model(p: Any, tokens: Any) -> Any:
        return loss(gpt(p, tokens)[:, :-1], tokens[:, 1:])

    return Case(model, tree, (ids(),), Truth(("wte",)), tree)


@case
def optax_loss_by_labels() -> Case:
    import optax

    return loss_case(lambda z, y: optax.softmax_cross_entropy_with_integer_labels(z, y).mean())


@case
def optax_loss_by_one_hot() -> Case:
    import optax

    return loss_case(lambda z, y: optax.softmax_cross_entropy(z, jax.nn.one_hot(y, VOCAB)).mean())


@case
def loss_and_its_gradient() -> Case:
    """A whole training step: the table is read again on the way back."""
    tree = gpt_params()

    def loss(p: Any, tokens: Any) -> Any:
        logp = jax.nn.log_softmax(gpt(p, tokens)[:, :-1])
        return -jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1).mean()

    return Case(loss, tree, (ids(),), Truth(("wte",)), tree)


@case
def encoder_and_decoder_share_the_table() -> Case:
    def model(p: Any, source: Any, target: Any) -> Any:
        memory = rms_norm(p["shared"][source] @ p["enc"])
        x = p["shared"][target] * 2.0
        attended = jax.nn.softmax(x @ memory.swapaxes(-1, -2)) @ memory
        return (rms_norm(x + attended) * WIDTH**-0.5) @ p["shared"].T

    tree = {"shared": normal(0, VOCAB, WIDTH), "enc": normal(1, WIDTH, WIDTH)}
    truth = Truth(("shared",), lookup_factor=None, readout_factor=1 / ROOT, counts=(2, 1, 1))
    return Case(model, tree, (ids(), ids(length=4)), truth, tree)


@case
def factorised_embedding() -> Case:
    """A narrow table, widened behind the lookup and narrowed before the readout."""

    def model(p: Any, tokens: Any) -> Any:
        x = p["table"][tokens] @ p["widen"]
        h = rms_norm(x + jnp.tanh(x @ p["mid"]))
        return rms_norm(h @ p["widen"].T) @ p["table"].T * 2.0

    tree = {"table": normal(0, VOCAB, WIDTH), "widen": normal(1, WIDTH, 24), "mid": normal(2, 24, 24)}
    return Case(model, tree, (ids(),), Truth(readout_factor=2.0), tree)


class Cached(nn.Module):
    """One decoding step with a key-value cache that is written in the pass."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(VOCAB, WIDTH, name="embed")
        x = embed(tokens) * 3.0
        cached = self.variable("cache", "k", jnp.zeros, (tokens.shape[0], 16, WIDTH))
        index = self.variable("cache", "i", lambda: jnp.array(0, jnp.int32))
        k = jax.lax.dynamic_update_slice(cached.value, nn.Dense(WIDTH)(nn.RMSNorm()(x)), (0, index.value, 0))
        cached.value, index.value = k, index.value + tokens.shape[1]
        x = x + jax.nn.softmax(x @ k.swapaxes(-1, -2)) @ k
        return embed.attend(nn.RMSNorm()(x))


@case
def a_cache_that_is_written() -> Case:
    model = Cached()
    variables = model.init(jax.random.key(0), ids())
    inputs = {"tokens": ids(), "mutable": ["cache"]}
    return Case(model, variables, inputs, Truth(("params.embed.embedding",), lookup_factor=3.0), variables)


class JittedNnx(nnx.Module):
    """Its call is compiled by nnx, and its layers are a list."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.wte = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)

    @nnx.jit
    def __call__(self, tokens: Any) -> Any:
        x = self.wte(tokens) * jnp.sqrt(jnp.float32(WIDTH))
        for layer in self.layers:
            x = x + nnx.silu(layer(x))
        return self.norm(x) @ self.wte.embedding[...].T


@case
def nnx_jit() -> Case:
    model = JittedNnx(nnx.Rngs(0))
    return Case(model, None, (ids(),), Truth(("wte.embedding",), lookup_factor=ROOT), model)


@case
def nnx_state_beside_the_module() -> Case:
    """Structure from one place, values from another, here shapes alone."""
    model = JittedNnx(nnx.Rngs(0))
    shapes = jax.eval_shape(lambda: nnx.state(model))
    return Case(model, shapes, (ids(),), Truth(("wte.embedding",), lookup_factor=ROOT), model)


@case
def gradient_rescaled_on_the_way_back() -> Case:
    """The embedding's gradient is shrunk by x * a + stop_gradient(x) * (1 - a): the value stays."""

    def model(p: Any, tokens: Any) -> Any:
        x = p["wte"][tokens]
        x = x * 0.1 + jax.lax.stop_gradient(x) * 0.9
        return rms_norm(x + jnp.tanh(x @ p["mid"])) @ p["wte"].T

    tree = {"wte": normal(0, VOCAB, WIDTH), "mid": normal(1, WIDTH, WIDTH)}
    return Case(model, tree, (ids(),), Truth(("wte",)), tree)


@case
def fori_loop_over_layers() -> Case:
    def model(p: Any, tokens: Any) -> Any:
        x = p["wte"][tokens] * 2.0
        x = jax.lax.fori_loop(0, 3, lambda i, h: h + jnp.tanh(rms_norm(h) @ p["layers"][i]), x)
        return rms_norm(x) @ p["wte"].T

    tree = {"wte": normal(0, VOCAB, WIDTH), "layers": normal(1, 3, WIDTH, WIDTH)}
    return Case(model, tree, (ids(),), Truth(("wte",), lookup_factor=2.0), tree)


@case
def vocabulary_padded_in_the_pass() -> Case:
    """Logits of rows that pad the table are cut off."""

    def model(p: Any, tokens: Any) -> Any:
        x = p["wte"][tokens]
        return (rms_norm(x + jnp.tanh(x @ p["mid"])) @ p["wte"].T)[..., :33]

    tree = {"wte": normal(0, VOCAB, WIDTH), "mid": normal(1, WIDTH, WIDTH)}
    return Case(model, tree, (ids(vocab=33),), Truth(("wte",)), tree)
