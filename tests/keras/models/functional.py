"""Models drawn as graphs: `ReversibleEmbedding`, `Rescaling`, `Lambda`, numbers in `ops`, nested and sequential."""

import math

import keras
from keras import ops
from tests.keras.models.kit import (
    VOCAB,
    WIDTH,
    Case,
    Truth,
    case,
    drawn,
    embedding,
    functional,
    ids,
    normal,
    residual,
    reversible,
)

ROOT = math.sqrt(WIDTH)


@case("functional_reversible")
def _reversible() -> Case:
    e = reversible()
    return functional(e, e, lambda h: e(h, reverse=True))


@case("functional_norm_at_once")
def _norm_at_once() -> Case:
    e, norm = reversible(), keras.layers.LayerNormalization()
    return functional(e, e, lambda h: e(h, reverse=True), norm, norm_after_lookup=True)


@case("functional_rms_norm")
def _rms_norm() -> Case:
    e, norm = reversible(), keras.layers.RMSNormalization()
    return functional(e, e, lambda h: e(h, reverse=True), norm, norm_after_lookup=True)


@case("functional_soft_cap")
def _soft_cap() -> Case:
    e = reversible(logit_soft_cap=30.0)
    return functional(e, e, lambda h: e(h, reverse=True), soft_cap=30.0)


@case("functional_rescaling")
def _rescaling() -> Case:
    e, up, down = reversible(), keras.layers.Rescaling(ROOT), keras.layers.Rescaling(0.25)
    return functional(
        e, lambda t: up(e(t)), lambda h: down(e(h, reverse=True)), lookup_factor=ROOT, readout_factor=0.25
    )


@case("functional_rescaling_before_the_readout")
def _rescaling_before() -> Case:
    e, down = reversible(), keras.layers.Rescaling(0.25)
    inner = residual()
    return functional(e, e, lambda h: e(down(h), reverse=True), inner, readout_factor=0.25)


@case("functional_lambda")
def _lambda() -> Case:
    e, up = reversible(), keras.layers.Lambda(lambda x: x * 3.0)
    return functional(e, lambda t: up(e(t)), lambda h: e(h, reverse=True) / 4.0, lookup_factor=3.0, readout_factor=0.25)


@case("functional_ops_numbers")
def _ops_numbers() -> Case:
    e = reversible()
    return functional(
        e,
        lambda t: ops.multiply(e(t), ops.sqrt(ops.cast(WIDTH, "float32"))),
        lambda h: ops.divide(e(h, reverse=True), ROOT),
        lookup_factor=ROOT,
        readout_factor=1 / ROOT,
        rel=1e-6,
    )


@case("functional_negative")
def _negative() -> Case:
    e = reversible()
    return functional(e, lambda t: -e(t), lambda h: e(h, reverse=True) * -0.5, lookup_factor=-1.0, readout_factor=-0.5)


@case("functional_einsum")
def _einsum() -> Case:
    e = embedding()
    e.build()
    return functional(e, e, lambda h: ops.einsum("btd,vd->btv", h, e.embeddings) * 2.0, readout_factor=2.0)


@case("functional_bias_of_its_own")
def _bias() -> Case:
    e = reversible()

    class Bias(keras.layers.Layer):
        def build(self, shape: object) -> None:
            self.bias = self.add_weight(shape=(VOCAB,), name="bias", initializer=normal())

        def call(self, logits: object) -> object:
            return logits + self.bias

    bias = Bias()
    return functional(e, e, lambda h: bias(e(h, reverse=True)), readout_bias=True)


@case("functional_dropout_and_positions")
def _dropout() -> Case:
    e, drop = reversible(mask_zero=True), keras.layers.Dropout(0.5)
    return functional(e, lambda t: drop(e(t) * 2.0), lambda h: e(h, reverse=True), lookup_factor=2.0)


@case("functional_last_position_alone")
def _last() -> Case:
    e = reversible()
    return functional(e, e, lambda h: e(h[:, -1], reverse=True))


@case("functional_no_norm")
def _no_norm() -> Case:
    e, dense = reversible(), keras.layers.Dense(WIDTH, activation="tanh")
    return functional(e, e, lambda h: e(h, reverse=True), dense, normalized=False)


@case("functional_dictionary_of_inputs", staged=False)
def _dictionary() -> Case:
    e, body = reversible(), residual()
    tokens = keras.Input((None,), dtype="int32", name="token_ids")
    mask = keras.Input((None,), dtype="int32", name="padding_mask")
    h = body(e(tokens) * ops.cast(mask, "float32")[..., None])
    model = keras.Model({"token_ids": tokens, "padding_mask": mask}, e(h, reverse=True))
    inputs = {"token_ids": ids(), "padding_mask": ids() * 0 + 1}
    return Case(model, inputs, Truth((e._embeddings.path,)))


@case("functional_two_inputs_in_a_tuple", staged=False)
def _two_inputs() -> Case:
    e, body = reversible(), residual()
    tokens, more = (keras.Input((None,), dtype="int32", name=n) for n in ("tokens", "more"))
    model = keras.Model([tokens, more], e(body(e(tokens) + e(more)), reverse=True))
    return Case(model, (ids(), ids()), Truth((e._embeddings.path,), counts=None))


@case("functional_nested_models")
def _nested() -> Case:
    e, inner = reversible(), residual()
    hidden = keras.Input((None, WIDTH))
    body = keras.Model(hidden, inner(hidden), name="backbone")
    return functional(e, e, lambda h: e(h, reverse=True) * 0.5, body, readout_factor=0.5)


@case("functional_backbone_holds_the_table")
def _backbone() -> Case:
    e, inner = reversible(), residual()
    tokens = keras.Input((None,), dtype="int32")
    backbone = keras.Model(tokens, inner(e(tokens) * 4.0), name="backbone")
    model = drawn(backbone, lambda x: x, lambda h: e(h, reverse=True))
    truth = Truth((e._embeddings.path,), lookup_factor=4.0)
    return Case(model, ids(), truth, e._embeddings, lambda t: e(t) * 4.0, inner, lambda h: e(h, reverse=True))


@case("sequential_with_a_head_on_the_table")
def _sequential() -> Case:
    e = embedding()
    e.build()
    dense, norm = keras.layers.Dense(WIDTH, activation="tanh"), keras.layers.LayerNormalization()
    head = keras.layers.Lambda(lambda h: ops.matmul(h, ops.transpose(e.embeddings)) * 0.125)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), e, dense, norm, head])
    truth = Truth((e._embeddings.path,), readout_factor=0.125)
    return Case(model, ids(), truth, e._embeddings, e, lambda x: norm(dense(x)), head)


@case("two_layers_of_one_name", staged=False)
def _one_name() -> Case:
    def part(tokens: object, name: str) -> tuple[object, object]:
        e = reversible(name="embed")
        inner = keras.Input((None,), dtype="int32")
        return keras.Model(inner, e(inner), name=name)(tokens), e

    tokens = keras.Input((None,), dtype="int32")
    a, table = part(tokens, "left")
    b, _ = part(tokens, "right")
    model = keras.Model(tokens, table(residual()(a + b), reverse=True))
    return Case(model, ids(), Truth(("embed/embeddings",), counts=None))
