"""The block of Keras, on the backend that this process has; the other processes visit the others."""

import json
from typing import ClassVar

import keras
import numpy as np
import pytest
from keras import ops
from tests.blocks import reference
from tests.blocks.contract import BlockContract
from tests.blocks.reference import CASES, IDS

import tiebeam
from tiebeam.backends import REGISTRY
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.keras import TiedEmbedding, UnitLogitNormal

BACKEND = keras.backend.backend()
POLICIES = ["mixed_float16", "mixed_bfloat16", "bfloat16", *(["float64"] if BACKEND != "jax" else [])]


def slopes(layer, loss):
    """Gradients of a function without arguments, by each backend's own means, for every weight."""
    variables = layer.trainable_variables
    if BACKEND == "jax":
        import jax

        def pure(values):
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return loss()

        found = jax.grad(pure)([v.value for v in variables])
    elif BACKEND == "torch":
        loss().backward()
        found = [v.value.grad for v in variables]
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        found = [tf.convert_to_tensor(g) for g in tape.gradient(value, [v.value for v in variables])]
    return [ops.convert_to_numpy(g) for g in found]


class TestKeras(BlockContract):
    names: ClassVar = {name: name for name in ("bias", "project_in", "project_out")} | {"table": "embeddings"}

    def make(self, seed=0, **arguments):
        keras.utils.set_random_seed(seed)
        layer = TiedEmbedding(**arguments)
        layer.build()
        return layer

    def weights(self, block):
        return {v.name: ops.convert_to_numpy(v) for v in block.weights}

    def load(self, block, weights):
        for name, x in weights.items():
            getattr(block, name).assign(x)
        return block

    def look_up(self, block, ids):
        return ops.convert_to_numpy(block(ids))

    def read_out(self, block, hidden):
        return ops.convert_to_numpy(block(hidden, reverse=True))

    def gradients(self, block, mixing, probe):
        body, weigh = ops.convert_to_tensor(mixing), ops.convert_to_tensor(probe)

        def loss():
            return ops.sum(block(ops.matmul(block(IDS), body), reverse=True) * weigh)

        return {v.name: g for v, g in zip(block.trainable_variables, slopes(block, loss), strict=True)}


def functional(**arguments):
    layer = TiedEmbedding(512, 64, **arguments, name="embed")
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.LayerNormalization(name="norm")(layer(ids))
    return keras.Model(ids, layer(hidden, reverse=True))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = TiedEmbedding(512, 64), keras.layers.LayerNormalization()

    def call(self, ids):
        return self.embed(self.norm(self.embed(ids)), reverse=True)


def ids_of(*shape, vocab=512, seed=0):
    return np.random.default_rng(seed).integers(0, vocab, shape).astype("int32")


def numbers(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


# ---- what it computes


def test_a_functional_model_and_a_subclassed_one_give_unit_logits():
    for model in (functional(), Subclassed()):
        logits = numbers(model(ids_of(2, 32)))
        assert logits.shape == (2, 32, 512)
        assert float(np.median(np.abs(logits))) / 0.6745 == pytest.approx(1.0, rel=0.05)


def test_it_is_keras_reversible_embedding_times_root_width():
    other = keras.layers.ReversibleEmbedding(512, 64)
    ids = ids_of(2, 5)
    other(ids)
    layer = TiedEmbedding(512, 64)
    layer.build()
    layer.embeddings.assign(other.embeddings)
    np.testing.assert_allclose(numbers(layer(ids)), numbers(other(ids)) * 8.0, rtol=1e-6)
    hidden = layer(ids)
    np.testing.assert_allclose(
        numbers(layer(hidden, reverse=True)), numbers(other(hidden, reverse=True)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.skipif("keras" not in REGISTRY, reason="tiebeam cannot look at Keras models yet")
@pytest.mark.parametrize(
    "arguments", [{}, {"lookup_factor": 1.0, "readout_factor": 0.125}, {"soft_cap": 30.0, "use_bias": True}], ids=str
)
def test_the_report_finds_the_tie_the_factors_and_unit_logits(arguments):
    model = functional(**arguments)
    report = tiebeam.inspect(model, ids_of(2, 32))
    report.assert_healthy()
    [table] = report.tables
    settings = model.get_layer("embed").settings
    assert table.state == "tied"
    assert table.lookup_factor == pytest.approx(settings.lookup_factor)
    assert table.readout_factor == pytest.approx(settings.readout_factor)
    assert (table.soft_cap, table.readout_bias) == (settings.soft_cap, "use_bias" in arguments)
    assert table.predicted.logit_std == pytest.approx(1.0, rel=0.03)


def test_a_few_steps_of_fit_learn_a_text_by_heart():
    keras.utils.set_random_seed(0)
    model, ids = functional(padding_idx=0, use_bias=True), ids_of(2, 9)
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(ids[:, :-1], ids[:, 1:], epochs=60, verbose=0).history["loss"]
    assert losses[0] > 5
    assert losses[-1] < 0.5


# ---- shapes, masks, dtypes


def test_shapes_are_known_before_anything_is_computed():
    layer = TiedEmbedding(11, 6, table_width=4)
    assert layer.compute_output_shape((None, 7)) == (None, 7, 6)
    assert layer.compute_output_shape((None, 7, 6), reverse=True) == (None, 7, 11)
    assert layer(keras.Input((7, 6)), reverse=True).shape == (None, 7, 11)  # the readout may come first
    assert [w.shape for w in layer.weights] == [(11, 4), (4, 6), (6, 4)]
    with pytest.raises(ShapeError):
        layer.compute_output_shape((None, 7, 4), reverse=True)


def test_float_ids_are_refused_where_the_model_is_built():
    with pytest.raises(InputError, match="float32"):
        TiedEmbedding(11, 6)(keras.Input((None,)))


def test_a_mask_of_padding_reaches_the_logits():
    layer, ids = TiedEmbedding(11, 6, mask_zero=True), ops.convert_to_tensor(IDS)
    np.testing.assert_array_equal(numbers(layer.compute_mask(ids)), IDS != 0)
    assert layer.compute_mask(layer(ids), "mask") == "mask"
    plain = TiedEmbedding(11, 6)
    assert plain.compute_mask(ids, "mask") is None
    model = functional(mask_zero=True, padding_idx=0)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    padded = np.array([[5, 6, 7, 0, 0]], "int32")
    got = float(model.evaluate(padded, padded, verbose=0))
    logits = numbers(model(padded))[0, :3].astype("float64")
    each = np.logaddexp.reduce(logits, axis=-1) - logits[np.arange(3), padded[0, :3]]
    assert got == pytest.approx(each.mean(), rel=1e-4)  # padded places do not count


def test_a_mask_of_zero_and_another_padding_row_are_refused():
    with pytest.raises(RangeError, match=r"mask_zero=True, padding_idx=3\n.*\nHint"):
        TiedEmbedding(11, 6, mask_zero=True, padding_idx=3)


@pytest.mark.parametrize("policy", POLICIES)
def test_dtype_policies_are_followed(policy):
    dtype = keras.dtype_policies.get(policy)
    layer = TiedEmbedding(11, 6, table_width=4, use_bias=True, soft_cap=2.0, padding_idx=3, dtype=policy)
    rows = layer(IDS)
    logits = layer(rows, reverse=True)
    assert {keras.backend.standardize_dtype(v.dtype) for v in layer.weights} == {dtype.variable_dtype}
    for x in (rows, logits, layer(keras.Input((None,), dtype="int32"))):
        assert keras.backend.standardize_dtype(x.dtype) == dtype.compute_dtype
    exact = reference.read_out(
        CASES["all"].__class__(table_width=4, padding_idx=3, soft_cap=2.0, bias=True),
        {("table" if v.name == "embeddings" else v.name): numbers(v) for v in layer.weights},
        numbers(rows),
    )
    np.testing.assert_allclose(numbers(logits), exact, atol=0.05)


# ---- saving


@pytest.mark.parametrize("name", CASES)
def test_a_config_makes_the_layer_again(name):
    given = CASES[name].arguments("use_bias")
    layer = TiedEmbedding(**given, embeddings_regularizer="l2", embeddings_initializer=UnitLogitNormal(seed=3))
    config = layer.get_config()
    assert {key: config[key] for key in given} == given  # a default stays a default
    again = TiedEmbedding.from_config(config)
    assert again.get_config() == config
    assert again.settings == layer.settings


def test_numbers_of_numpy_go_into_a_config():
    layer = TiedEmbedding(9, 4, lookup_factor=np.float32(2), soft_cap=np.float64(30), padding_idx=np.int64(0))
    again = TiedEmbedding.from_config(json.loads(json.dumps(layer.get_config())))
    assert again.settings == layer.settings
    drawn = UnitLogitNormal(np.float32(0.5), padding_idx=np.int32(1), seed=3)
    assert json.loads(json.dumps(drawn.get_config())) == drawn.get_config()


@pytest.mark.parametrize("arguments", [{}, {"table_width": 16, "use_bias": True, "padding_idx": 0, "mask_zero": True}])
def test_a_saved_model_loads_in_safe_mode_with_one_table(arguments, tmp_path):
    model, ids = functional(**arguments), ids_of(2, 5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(numbers(again(ids)), numbers(model(ids)))
    assert [w.path for w in again.weights] == [w.path for w in model.weights]
    assert sum(w.shape == model.get_layer("embed").embeddings.shape for w in again.weights) == 1
    changed = again.get_layer("embed").embeddings
    changed.assign(changed * 2)
    assert not np.array_equal(numbers(again(ids)), numbers(model(ids)))


def test_weights_and_a_clone_keep_one_table(tmp_path):
    model, ids = Subclassed(), ids_of(2, 5)
    model(ids)
    model.save_weights(tmp_path / "a.weights.h5")
    again = Subclassed()
    again(ids)
    again.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(numbers(again(ids)), numbers(model(ids)))
    assert len(keras.models.clone_model(functional()).get_layer("embed").weights) == 1


def test_an_initializer_makes_itself_again_and_draws_by_the_rule():
    init = UnitLogitNormal(readout_factor=0.25, padding_idx=2, seed=1)
    again = keras.initializers.deserialize(keras.initializers.serialize(init))
    a, b = (numbers(i((512, 64))) for i in (init, again))
    np.testing.assert_array_equal(a, b)
    assert float(a.std()) == pytest.approx(0.5, rel=0.02)
    assert not a[2].any()
    with pytest.raises(RangeError):
        UnitLogitNormal(0.0)


def test_regularisers_and_constraints_see_the_table():
    layer = TiedEmbedding(11, 6, embeddings_regularizer=keras.regularizers.L2(0.5), embeddings_constraint="non_neg")
    layer(IDS)
    assert float(numbers(layer.losses[0])) == pytest.approx(
        0.5 * float((numbers(layer.embeddings) ** 2).sum()), rel=1e-5
    )
    assert layer.embeddings.constraint is not None


# ---- no copies


def tables_made(layer, size):
    """Operations of one pass whose result is a new tensor as large as the table; views do not count."""
    if BACKEND == "jax":
        import jax
        from tests.blocks.jax_kit import results_as_large_as

        def run(state, ids):
            rows, _ = layer.stateless_call(state, [], ids)
            return layer.stateless_call(state, [], rows, reverse=True)[0]

        return results_as_large_as(jax.make_jaxpr(run)([v.value for v in layer.variables], np.arange(8)).jaxpr, size)
    if BACKEND == "torch":
        from tests.blocks.torch_kit import NewStorages

        with NewStorages(size) as seen:
            layer(layer(np.arange(8)), reverse=True)
        return seen.made
    import tensorflow as tf

    run = tf.function(lambda ids: layer(layer(ids), reverse=True)).get_concrete_function(tf.TensorSpec((8,), tf.int32))
    reads = {"ReadVariableOp", "Placeholder", "Const", "Identity"}
    return [
        op.type
        for op in run.graph.get_operations()
        if op.type not in reads and any(t.shape.rank and (t.shape.num_elements() or 0) >= size for t in op.outputs)
    ]


def test_no_pass_copies_or_transposes_the_table():
    layer = TiedEmbedding(4096, 32, padding_idx=0, use_bias=True, soft_cap=5.0, readout_factor=0.5)
    layer.build()
    assert not tables_made(layer, 4096 * 32)


def test_a_copy_would_be_noticed():
    class Copies(TiedEmbedding):
        def call(self, inputs, reverse=False):
            table = ops.transpose(self.embeddings) * 2.0
            return super().call(inputs, reverse=reverse) * ops.sum(table)

    layer = Copies(4096, 32)
    layer.build()
    assert tables_made(layer, 4096 * 32)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_an_odd_width_in_half_precision_gives_what_it_gives_in_float32(policy):
    """TensorFlow's einsum summed an odd number of bfloat16 products wrongly, where the processor has AMX."""
    arguments = {"vocab": 12, "width": 8, "table_width": 5}
    rng = np.random.default_rng(0)
    hidden, ids = rng.normal(size=(4, 7, 8)).astype("float32"), rng.integers(0, 12, (4, 7))
    narrow, wide = TiedEmbedding(**arguments, dtype=policy), TiedEmbedding(**arguments, dtype="float32")
    for layer in (narrow, wide):
        layer.build()
    for mine, other in zip(narrow.weights, wide.weights, strict=True):
        mine.assign(other)
    by = ops.convert_to_tensor(rng.normal(size=(4, 7, 12)).astype("float32"))

    def both(layer):
        logits, rows = layer(hidden, reverse=True), layer(ids)
        grads = slopes(layer, lambda: ops.sum(ops.cast(layer(layer(ids), reverse=True), "float32") * by))
        seen = [ops.stop_gradient(ops.cast(a, "float32")) for a in (logits, rows)]
        return [ops.convert_to_numpy(a).astype("float32") for a in (*seen, *grads)]

    for found, want in zip(both(narrow), both(wide), strict=True):
        assert np.linalg.norm(found - want) < 2e-2 * np.linalg.norm(want)
