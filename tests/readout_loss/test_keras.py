"""The readout loss on each backend of Keras, held against NumPy."""

import re
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from keras import ops

from tiebeam.blocks.readout_loss.sight import logits_in_sight
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.keras import TiedEmbedding, readout_loss

ON = keras.backend.backend()
VOCAB, WIDTH = 23, 6

#: In blocks, and by way of the logits where a recording of the forward pass asks for them; JAX's blocks are seen into.
WAYS = {"blocks": nullcontext} | ({} if ON == "jax" else {"logits": logits_in_sight})


def reference(hidden, table, targets, *, factor=1.0, soft_cap=None, bias=None, label_smoothing=0.0, z_loss=0.0,
              weight=None, reduction="mean"):  # fmt: skip
    """In float64."""
    z = factor * (hidden @ table.T) + (0.0 if bias is None else bias)
    z = z if soft_cap is None else soft_cap * np.tanh(z / soft_cap)
    lse = np.logaddexp.reduce(z, axis=-1)
    counted = targets != -100
    rows, weight = np.where(counted, targets, 0), np.ones(len(table)) if weight is None else weight
    own = weight[rows] * (lse - np.take_along_axis(z, rows[..., None], -1)[..., 0])
    every = (weight * (lse[..., None] - z)).sum(-1)
    loss = counted * ((1 - label_smoothing) * own + label_smoothing / len(table) * every)
    extra = counted * z_loss * lse**2
    if reduction == "none":
        return loss + extra
    if reduction == "sum":
        return loss.sum() + extra.sum()
    return loss.sum() / (counted * weight[rows]).sum() + extra.sum() / counted.sum()


def problem(ignored=0, **options):
    rng = np.random.default_rng(0)
    hidden, table = rng.normal(size=(2, 5, WIDTH)), rng.normal(size=(VOCAB, WIDTH))
    targets = rng.integers(0, VOCAB, (2, 5))
    targets.reshape(-1)[:ignored] = -100
    made = {"bias": lambda: rng.normal(size=VOCAB), "weight": lambda: rng.uniform(size=VOCAB)}
    return hidden, table, targets, {k: made[k]() if v is True else v for k, v in options.items()}


def differences(at, total, step=1e-5):
    """Of a function of one array, by central differences."""
    grad = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        grad[index] = (total(moved[0]) - total(moved[1])) / (2 * step)
    return grad


def gradients(total, *arrays):
    """Value and gradients of a function of tensors, on any backend."""
    if ON == "jax":
        import jax

        value, grads = jax.value_and_grad(total, argnums=tuple(range(len(arrays))))(*map(ops.convert_to_tensor, arrays))
    elif ON == "torch":
        leaves = [ops.convert_to_tensor(a).requires_grad_() for a in arrays]
        value = total(*leaves)
        value.backward()
        grads = [leaf.grad for leaf in leaves]
    else:
        import tensorflow as tf

        leaves = [tf.convert_to_tensor(a) for a in arrays]
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            value = tf.function(total)(*leaves)
        grads = tape.gradient(value, leaves)
    return float(ops.convert_to_numpy(value)), [ops.convert_to_numpy(g) for g in grads]


def in_a_graph(work):
    import tensorflow as tf

    return tf.function(work, autograph=False)


def narrowed(options):
    return {k: v.astype("float32") if isinstance(v, np.ndarray) else v for k, v in options.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"factor": 0.5, "bias": True},
        {"soft_cap": 2.0, "label_smoothing": 0.1, "weight": True},
        {"label_smoothing": 0.1, "z_loss": 0.01, "bias": True, "ignored": 3},
        {"reduction": "none", "ignored": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("way", WAYS)
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(options, way):
    hidden, table, targets, given = problem(**options)
    scale = np.linspace(0.1, 1.0, 10).reshape(2, 5) if options.get("reduction") == "none" else 0.3

    def total(hidden, table):
        loss = readout_loss(hidden, table, targets, **narrowed(given), chunk=4)
        return ops.sum(loss * ops.cast(scale, loss.dtype))

    with WAYS[way]():
        value, grads = gradients(total, hidden.astype("float32"), table.astype("float32"))
    want = float((reference(hidden, table, targets, **given) * scale).sum())
    assert value == pytest.approx(want, rel=1e-5)
    at_hidden = differences(hidden, lambda h: (reference(h, table, targets, **given) * scale).sum())
    at_table = differences(table, lambda t: (reference(hidden, t, targets, **given) * scale).sum())
    np.testing.assert_allclose(grads[0], at_hidden, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(grads[1], at_table, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("way", WAYS)
def test_statistics_are_those_of_the_logits(way):
    hidden, table, targets, _ = problem(ignored=2)
    ids = np.flip(np.where(targets < 0, 0, targets)).copy()
    narrow = hidden.astype("float32"), table.astype("float32")

    def look():
        return readout_loss(*narrow, targets, ids=ids, returns="stats", chunk=3)

    with WAYS[way]():
        _, stats = in_a_graph(look)() if ON == "tensorflow" else look()
    z, counted = hidden @ table.T, targets != -100
    found = {n: ops.convert_to_numpy(getattr(stats, n)) for n in ("logsumexp", "best", "own_logit", "counted")}
    np.testing.assert_allclose(found["logsumexp"][counted], np.logaddexp.reduce(z, -1)[counted], rtol=1e-5)
    np.testing.assert_allclose(
        found["own_logit"][counted], np.take_along_axis(z, ids[..., None], -1)[..., 0][counted], rtol=1e-4, atol=1e-5
    )
    assert np.array_equal(found["best"], (z.argmax(-1) == targets) & counted)
    assert np.array_equal(found["counted"], counted)


def test_a_layer_knows_its_own_readout():
    layer = TiedEmbedding(VOCAB, 8, table_width=6, readout_factor=-0.5, soft_cap=2.0, use_bias=True)
    targets = problem()[2]
    hidden = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("float32")
    logits = ops.convert_to_numpy(layer(hidden, reverse=True)).astype("float64")
    want = (np.logaddexp.reduce(logits, -1) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]).mean()
    assert float(ops.convert_to_numpy(layer.loss(hidden, targets))) == pytest.approx(want, rel=1e-5)
    with pytest.raises(ShapeError, match="the readout of TiedEmbedding"):
        layer.loss(hidden[..., :5], targets)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"targets": np.full((2, 5), 23)}, InputError, "23 at index"),
        ({"targets": np.full((2, 4), 1)}, ShapeError, "targets of readout_loss"),
        ({"hidden": np.ones((2, 5, 4), "float32")}, ShapeError, "another width"),
        ({"hidden": np.full((2, 5, 6), np.nan, "float32")}, InputError, "NaN or infinity"),
        ({"hidden": np.ones((2, 5, 6), "int32")}, InputError, "floating-point"),
        ({"soft_cap": -1.0}, RangeError, "soft_cap"),
        ({"returns": "logits"}, RangeError, "'stats'"),
    ],
)
def test_what_makes_no_sense_is_refused(change, error, words):
    hidden, table, targets, _ = problem()
    given = {"hidden": hidden.astype("float32"), "table": table.astype("float32"), "targets": targets}
    with pytest.raises(error, match=re.escape(words)):
        readout_loss(**given | change)


@pytest.mark.skipif(ON != "tensorflow", reason="JAX's own test says it of jit; PyTorch knows the numbers")
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_in_a_graph_a_target_outside_the_table_lets_no_finite_gradient_through(reduction):
    import tensorflow as tf

    hidden, table, targets, _ = problem()
    targets[1, 2] = VOCAB

    @tf.function
    def both(hidden, table, targets):
        with tf.GradientTape() as tape:
            tape.watch((hidden, table))
            loss = tf.reduce_sum(readout_loss(hidden, table, targets, reduction=reduction))
        return loss, *tape.gradient(loss, (hidden, table))

    loss, of_hidden, of_table = both(*(tf.constant(a, tf.float32) for a in (hidden, table)), tf.constant(targets))
    assert np.isnan(loss)
    assert np.isnan(of_hidden.numpy()[1, 2]).all()
    assert np.isnan(of_table).any()


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_gradients_of_half_precision_are_of_the_dtype_of_what_they_are_of(kind, reduction):
    hidden, table, targets, _ = problem()

    def total(hidden, table):
        given = ops.cast(hidden, kind), ops.cast(table, kind)
        return ops.sum(readout_loss(*given, targets, reduction=reduction))

    value, grads = gradients(total, hidden.astype("float32"), table.astype("float32"))
    assert value == pytest.approx(float(reference(hidden, table, targets, reduction="sum")), rel=1e-2)
    for grad, moved in zip(
        grads,
        (
            lambda h: reference(h, table, targets, reduction="sum"),
            lambda t: reference(hidden, t, targets, reduction="sum"),
        ),
        strict=True,
    ):
        right = differences(hidden if grad.ndim == 3 else table, moved)
        assert np.linalg.norm(grad - right) < 2e-2 * np.linalg.norm(right)


def test_what_a_functional_model_is_drawn_with_is_refused():
    layer = TiedEmbedding(VOCAB, WIDTH)
    layer.build()
    with pytest.raises(InputError, match="Hint: call it where there are numbers"):
        layer.loss(keras.Input((5, WIDTH)), keras.Input((5,), dtype="int32"))


@pytest.mark.skipif(ON != "tensorflow", reason="the others know each size when they trace")
class TestSizesThatAGraphDoesNotKnow:
    """A batch of any size, as `fit` compiles: what is known is checked then, the rest when the graph runs."""

    def run(self, hidden, targets, known=True, **options):
        import tensorflow as tf

        axis = 5 if known else None
        signature = [
            tf.TensorSpec((None, axis, WIDTH)),
            tf.TensorSpec((None, targets.shape[1] if known else None), tf.int64),
        ]
        table = problem()[1].astype("float32")
        return tf.function(
            lambda h, y: readout_loss(h, table, y, **options), input_signature=signature, autograph=False
        )(hidden.astype("float32"), targets)

    @pytest.mark.parametrize("known", [True, False])
    def test_what_fits_is_computed(self, known):
        hidden, table, targets, _ = problem()
        assert float(self.run(hidden, targets, known)) == pytest.approx(
            float(reference(hidden, table, targets)), rel=1e-5
        )

    def test_targets_that_were_not_shifted_with_the_hidden_states_are_refused(self):
        """They were flattened, and each token but the first row's was held against another's target."""
        import tensorflow as tf

        hidden, _, targets, _ = problem()
        longer = np.concatenate([targets, targets[:, :1]], axis=1)
        with pytest.raises(ShapeError, match=r"got: shape \(None, 6\)"):
            self.run(hidden, longer)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Hint: shift both, or neither"):
            self.run(hidden, longer, known=False)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"bias": np.ones(1, "float32")}, "bias of readout_loss"),
            ({"weight": np.ones(VOCAB + 1, "float32")}, "weight of readout_loss"),
            ({"ids": np.ones((2, 4), "int64")}, "ids of readout_loss"),
        ],
    )
    def test_what_would_be_spread_over_the_vocabulary_or_cut_is_refused(self, options, words):
        hidden, _, targets, _ = problem()
        with pytest.raises(ShapeError, match=words):
            self.run(hidden, targets, **options)


@pytest.mark.skipif(ON != "tensorflow", reason="JAX's own test says it")
def test_a_factor_of_each_feature_is_refused_and_statistics_leave_a_graph():
    import tensorflow as tf

    hidden, table, targets, _ = problem()
    given = hidden.astype("float32"), table.astype("float32"), targets
    with pytest.raises(RangeError, match="a learned factor"):
        readout_loss(*given, factor=np.ones(WIDTH, "float32"))
    ids = np.full_like(targets, 1)
    ids[0, 0] = VOCAB
    _, stats = tf.function(lambda i: readout_loss(*given, ids=i, returns="stats"), autograph=False)(tf.constant(ids))
    assert np.isnan(stats.own_logit).sum() == 1


@pytest.mark.skipif(ON != "tensorflow", reason="JAX always compiles")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("count", "chunk"), [(10, 4), (1, "auto"), (10, "auto")])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiled_by_xla_it_has_gradients_in_any_number_of_blocks(known, count, chunk, reduction):
    import tensorflow as tf

    hidden, table, targets, _ = problem(ignored=0 if count == 1 else 2)
    given = tf.constant(hidden.reshape(10, WIDTH)[:count], tf.float32), tf.constant(targets.reshape(10)[:count])
    table = tf.constant(table, tf.float32)

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch((hidden, table))
            loss, stats = readout_loss(
                hidden, table, targets, chunk=chunk, reduction=reduction, ids=targets * 0, returns="stats"
            )
        return loss, stats.logsumexp, stats.own_logit, *tape.gradient(loss, (hidden, table))

    any_size = [tf.TensorSpec((None, WIDTH)), tf.TensorSpec((None,), tf.int64)]
    compiled = tf.function(step, input_signature=None if known else any_size, jit_compile=True, autograph=False)
    for found, wanted in zip(compiled(*given), step(*given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(ON != "tensorflow", reason="the others never narrow a number")
def test_a_constant_factor_has_all_digits_in_float64():
    hidden, table, targets, _ = problem()
    found = float(readout_loss(hidden, table, targets, factor=0.3))
    assert found == pytest.approx(float(reference(hidden, table, targets, factor=0.3)), rel=1e-12)


def test_a_layer_is_not_taken_for_its_table():
    hidden, _, targets, _ = problem()
    layer = TiedEmbedding(VOCAB, WIDTH)
    layer.build()
    with pytest.raises(InputError, match=r"(?s)got: TiedEmbedding.*Hint: pass the array that it holds"):
        readout_loss(hidden, layer, targets)
    assert tuple(readout_loss(hidden.astype("float32"), layer.embeddings, targets).shape) == ()


def test_a_layer_that_is_not_built_has_no_loss():
    hidden, _, targets, _ = problem()
    layer = TiedEmbedding(VOCAB, WIDTH)
    with pytest.raises(InputError, match="look ids up first"):
        layer.loss(hidden, targets)
    assert not layer.variables
