"""The readout loss of JAX: equal to the cross entropy of logits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import tiebeam.equinox
import tiebeam.linen
import tiebeam.nnx
from tiebeam.errors import InputError, RangeError, ShapeError, TiebeamError
from tiebeam.jax import readout_loss

VOCAB, WIDTH = 23, 6


def cross_entropy(hidden, table, targets, *, factor=1.0, soft_cap=None, bias=None, label_smoothing=0.0, z_loss=0.0,
                  weight=None, reduction="mean"):  # fmt: skip
    z = factor * (hidden @ table.T)
    z = z if bias is None else z + bias
    z = z if soft_cap is None else soft_cap * jnp.tanh(z / soft_cap)
    logs, counted = jax.nn.log_softmax(z), targets != -100
    rows = jnp.where(counted, targets, 0)
    weight = jnp.ones(len(table)) if weight is None else weight
    own = jnp.where(counted, -weight[rows] * jnp.take_along_axis(logs, rows[..., None], -1)[..., 0], 0.0)
    every = jnp.where(counted, -(logs * weight).sum(-1), 0.0)
    loss = (1 - label_smoothing) * own + label_smoothing / len(table) * every
    extra = jnp.where(counted, z_loss * jax.scipy.special.logsumexp(z, -1) ** 2, 0.0)
    if reduction == "none":
        return loss + extra
    if reduction == "sum":
        return loss.sum() + extra.sum()
    return loss.sum() / jnp.where(counted, weight[rows], 0.0).sum() + extra.sum() / counted.sum()


def problem(shape=(2, 5), ignored=0, **options):
    rng = np.random.default_rng(0)

    def normal(*sizes):
        return jnp.asarray(rng.normal(size=sizes), jnp.float32)

    targets = rng.integers(0, VOCAB, shape)
    targets.reshape(-1)[:ignored] = -100
    made = {"bias": lambda: normal(VOCAB), "weight": lambda: abs(normal(VOCAB)), "factor": lambda: normal()}
    options = {name: made[name]() if value is True else value for name, value in options.items()}
    return normal(*shape, WIDTH), normal(VOCAB, WIDTH), jnp.asarray(targets), options


def gradients(way, hidden, table, targets, options, jit=True, **more):
    learned = {k: v for k, v in options.items() if k in ("bias", "factor") and isinstance(v, jax.Array)}
    fixed = {k: v for k, v in options.items() if k not in learned}

    def total(hidden, table, learned):
        loss = way(hidden, table, targets, **fixed, **learned, **more)
        return (loss * jnp.linspace(0.1, 1.0, loss.size).reshape(loss.shape)).sum() if loss.ndim else 0.3 * loss

    run = jax.value_and_grad(total, argnums=(0, 1, 2))
    return (jax.jit(run) if jit else run)(hidden, table, learned)


def close(found, want, tolerance=2e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, want)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"soft_cap": 2.0, "bias": True, "factor": True},
        {"label_smoothing": 0.1, "weight": True, "z_loss": 0.01, "bias": True, "ignored": 3},
        {"soft_cap": 2.0, "label_smoothing": 0.1, "weight": True, "reduction": "sum"},
        {"reduction": "none", "z_loss": 0.01, "factor": True, "ignored": 2},
    ],
    ids=str,
)
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(options):
    given = problem(**options)
    close(gradients(readout_loss, *given, chunk=4), gradients(cross_entropy, *given))


def test_without_jit_and_under_a_checkpoint_it_is_the_same():
    given = problem(bias=True)
    want = gradients(readout_loss, *given)
    close(gradients(readout_loss, *given, jit=False), want)
    close(gradients(jax.checkpoint(readout_loss, static_argnums=()), *given), want)


def test_all_targets_ignored_has_no_mean_and_no_gradient():
    hidden, table, targets, _ = problem(ignored=10)
    loss, (grad, *_) = gradients(readout_loss, hidden, table, targets, {})
    assert np.isnan(loss)
    assert not grad.any()
    assert float(readout_loss(hidden, table, targets, reduction="sum")) == 0.0


def test_bfloat16_sums_in_float32():
    hidden, table, targets, _ = problem((64,))
    narrow = hidden.astype(jnp.bfloat16), table.astype(jnp.bfloat16)
    loss, grads = gradients(readout_loss, *narrow, targets, {})
    want, wanted = gradients(cross_entropy, *(a.astype(jnp.float32) for a in narrow), targets, {})
    assert (loss.dtype, grads[0].dtype, grads[1].dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    assert float(loss) == pytest.approx(float(want), abs=1e-4)
    for grad, right in zip(grads[:2], wanted[:2], strict=True):
        error = jnp.linalg.norm(grad.astype(jnp.float32) - right) / jnp.linalg.norm(right)
        assert float(error) < 1e-2


def test_both_roles_of_a_table_sum_and_have_a_second_derivative():
    _, table, targets, _ = problem((5,))
    ids = jnp.arange(5)

    def of(way):
        return lambda t: way(t[ids], t, targets)

    def penalty(way):
        return jax.grad(lambda t: (jax.grad(of(way))(t) ** 2).sum())(table)

    close(jax.grad(of(readout_loss))(table), jax.grad(of(cross_entropy))(table))
    close(penalty(readout_loss), penalty(cross_entropy))


def test_statistics_are_those_of_the_logits():
    hidden, table, targets, _ = problem(ignored=2)
    ids = jnp.flip(jnp.where(targets < 0, 0, targets))
    loss, stats = jax.jit(lambda h: readout_loss(h, table, targets, ids=ids, returns="stats", chunk=3))(hidden)
    z, counted = hidden @ table.T, targets != -100
    close(stats.logsumexp[counted], jax.scipy.special.logsumexp(z, -1)[counted])
    close(stats.own_logit[counted], jnp.take_along_axis(z, ids[..., None], -1)[..., 0][counted])
    assert np.array_equal(stats.best, (z.argmax(-1) == targets) & counted)
    assert float(stats.accuracy) == pytest.approx(float(stats.best.sum()) / 8)
    close(loss, cross_entropy(hidden, table, targets))


def test_blocks_know_their_own_readout():
    arguments = {"vocab": 23, "width": 8, "table_width": 6, "readout_factor": -0.5, "soft_cap": 2.0, "use_bias": True}
    hidden = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 8)), jnp.float32)
    targets = problem()[2]
    made = tiebeam.linen.TiedEmbedding(**arguments)
    variables = made.init(jax.random.key(0), targets)

    def linen_loss(h):
        return made.apply(variables, h, targets, method="loss")

    def linen_logits(h):
        return made.apply(variables, h, method="attend")

    of_nnx = tiebeam.nnx.TiedEmbedding(**arguments, rngs=nnx.Rngs(0))
    of_equinox = tiebeam.equinox.TiedEmbedding(**arguments, key=jax.random.key(0))
    pairs = [(linen_loss, linen_logits)]
    pairs += [(lambda h, b=b: b.loss(h, targets), b.attend) for b in (of_nnx, of_equinox)]
    for loss, logits in pairs:
        want = -jnp.take_along_axis(jax.nn.log_softmax(logits(hidden)), targets[..., None], -1).mean()
        close(loss(hidden), want)
    assert isinstance(made, linen.Module)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"targets": jnp.full((2, 5), 23)}, InputError, "23 at index (0, 0), and 9 more"),
        ({"targets": jnp.full((2, 4), 1)}, ShapeError, "targets of readout_loss"),
        ({"targets": jnp.ones((2, 5))}, InputError, "integers"),
        ({"hidden": jnp.ones((2, 5, 4))}, ShapeError, "another width"),
        ({"hidden": jnp.ones((2, 5, 6), jnp.int32)}, InputError, "floating-point"),
        ({"hidden": jnp.full((2, 5, 6), jnp.nan)}, InputError, "NaN or infinity"),
        ({"hidden": jnp.ones((0, 6)), "targets": jnp.ones(0, jnp.int32)}, InputError, "empty batch"),
        ({"factor": jnp.ones(6)}, RangeError, "factor"),
        ({"soft_cap": -1.0}, RangeError, "soft_cap"),
        ({"returns": "logits"}, RangeError, "'stats'"),
    ],
)
def test_what_makes_no_sense_is_refused(change, error, words):
    hidden, table, targets, _ = problem()
    with pytest.raises(error, match=re.escape(words)):
        readout_loss(**{"hidden": hidden, "table": table, "targets": targets} | change)


def test_a_target_outside_the_table_makes_a_compiled_loss_nan():
    hidden, table, targets, _ = problem()
    assert np.isnan(jax.jit(readout_loss)(hidden, table, targets.at[0, 0].set(VOCAB)))


@pytest.mark.slow
def test_a_table_and_tokens_on_several_devices_are_one_table_and_one_batch():
    root = Path(__file__).parents[2]
    flags = {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4",
        "PYTHONPATH": f"{root / 'src'}:{root}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.readout_loss.sharded_jax"],
        env={**os.environ, **flags},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_arrays_that_a_compiled_function_holds_are_known_to_it():
    """Where all but the factor were, checking them failed; where only the hidden state was not, none was checked."""
    hidden, table, targets = jnp.ones((2, 4)), jnp.ones((7, 4)), jnp.zeros(2, int)
    grad = jax.jit(jax.grad(lambda f: readout_loss(hidden, table, targets, factor=f)))(1.0)
    assert float(grad) == pytest.approx(0.0, abs=1e-5)
    with pytest.raises(InputError, match="lie outside the table"):
        jax.grad(lambda h: readout_loss(h, table, targets + 7))(hidden)
    for factor, words in ((jnp.asarray(1j), "complex"), (jnp.asarray(jnp.nan), "NaN or infinity")):
        with pytest.raises(TiebeamError, match=words):
            readout_loss(hidden, table, targets, factor=factor)


def test_the_gradient_of_a_loss_that_is_nan_is_nan():
    table, targets = jnp.ones((7, 4)), jnp.array([0, 9])
    _, grad = jax.jit(jax.value_and_grad(lambda t, y: readout_loss(jnp.ones((2, 4)), t, y)))(table, targets)
    assert bool(jnp.isnan(grad).all())


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16"])
def test_targets_of_a_narrow_dtype_are_the_same_targets(kind):
    """In uint8, 256 rows came round to 0, so each target was outside; and -100 to 156, so that byte did not count."""
    rng = np.random.default_rng(0)
    hidden, table = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((4, 6), (256, 6)))
    targets = jnp.array([3, 100, 127, 5] if kind == "int8" else [3, 156, 255, 0])
    both = jax.jit(jax.value_and_grad(lambda t, y: readout_loss(hidden, t, y)))
    close(both(table, targets.astype(kind)), jax.value_and_grad(lambda t: cross_entropy(hidden, t, targets))(table))
    _, stats = readout_loss(hidden, table, targets.astype(kind), returns="stats")
    assert stats.counted.all()


def test_the_gradient_of_a_bfloat16_hidden_state_is_scaled_before_it_is_rounded():
    """The upstream gradient was rounded to bfloat16, which moved each entry the same way, and the table's none."""
    hidden, table, targets, _ = problem((64,))
    hidden, by = hidden.astype(jnp.bfloat16), 1 / 3  # in bfloat16 that is larger by 0.2 %

    def total(h):
        return by * readout_loss(h, table, targets)

    plain = jax.grad(lambda h: readout_loss(h, table, targets))(hidden.astype(jnp.float32))
    found = jax.grad(total)(hidden).astype(jnp.float32)
    assert float((found * plain).sum() / (plain * plain).sum()) == pytest.approx(by, rel=8e-4)


def test_an_id_outside_the_table_has_no_own_logit_where_no_number_can_be_refused():
    hidden, table, targets, _ = problem((3,))
    ids = jnp.array([1, VOCAB, -1])
    _, stats = jax.jit(lambda i: readout_loss(hidden, table, targets, ids=i, returns="stats"))(ids)
    assert np.isnan(stats.own_logit).tolist() == [False, True, True]


def test_a_learned_factor_may_be_a_variable_of_nnx():
    hidden, table, targets, _ = problem((3,))
    scale = nnx.Param(jnp.float32(0.5))
    close(readout_loss(hidden, table, targets, factor=scale), cross_entropy(hidden, table, targets, factor=0.5))


@pytest.mark.parametrize(
    "layer",
    [
        {"embedding": jnp.ones((VOCAB, WIDTH))},
        nnx.Embed(VOCAB, WIDTH, rngs=nnx.Rngs(0)),
        tiebeam.equinox.TiedEmbedding(VOCAB, WIDTH, key=jax.random.key(0)),
    ],
    ids=["tree", "nnx", "equinox"],
)
def test_what_holds_a_table_is_not_taken_for_it(layer):
    hidden, _, targets, _ = problem((3,))
    with pytest.raises(InputError, match=r"(?s)table of readout_loss.*an array\nHint: pass the array that it holds"):
        readout_loss(hidden, layer, targets)
