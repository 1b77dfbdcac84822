"""The zoo's model under every scheme: what the scheme says is what is seen, and what follows comes true."""

import jax
import jax.numpy as jnp
import pytest

import tiebeam
from tiebeam.zoo.jax.functional import FunctionalGpt
from tiebeam.zoo.schemes import SCHEMES

VOCAB, WIDTH = 2000, 64
IDS = jax.random.randint(jax.random.key(5), (4, 48), 0, VOCAB)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_is_seen_as_it_is_written(name: str) -> None:
    model = FunctionalGpt.of(name, vocab=VOCAB, width=WIDTH)
    params = model.init(jax.random.key(0))
    report = tiebeam.inspect(model, IDS, params=params)
    lookup = next(t for t in report.tables if t.lookups)
    readout = next(t for t in report.tables if t.readouts)
    assert lookup.state == ("tied" if model.scheme.tie else "untied")
    assert lookup.lookup_factor == pytest.approx(model.scheme.lookup_factor(WIDTH), rel=1e-6)
    assert readout.readout_factor == pytest.approx(model.scheme.readout_factor(WIDTH), rel=1e-6)
    logits = model(params, IDS)
    assert readout.predicted.logit_std == pytest.approx(float(logits.std()), rel=0.25)


@pytest.mark.parametrize("name", ["B", "C", "D", "F"])
def test_the_predicted_first_loss_is_the_first_loss(name: str) -> None:
    model = FunctionalGpt.of(name, vocab=VOCAB, width=WIDTH)
    params = model.init(jax.random.key(0))
    predicted = tiebeam.inspect(model, IDS, params=params).tables[0].predicted
    logp = jax.nn.log_softmax(model(params, IDS)[:, :-1])
    loss = -float(jnp.take_along_axis(logp, IDS[:, 1:, None], axis=-1).mean())
    assert predicted.initial_loss == pytest.approx(loss, rel=0.05)


def test_a_capped_model_in_half_precision() -> None:
    model = FunctionalGpt.of("C", vocab=VOCAB, width=WIDTH, soft_cap=30.0)
    [table] = tiebeam.inspect(model, IDS, params=model.init(jax.random.key(0), jnp.bfloat16)).tables
    assert (table.state, table.soft_cap, table.lookup_factor) == ("tied", 30.0, 8.0)


def test_shapes_alone_give_the_same_structure() -> None:
    model = FunctionalGpt.of("D", vocab=VOCAB, width=WIDTH)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    [table] = tiebeam.inspect(model, IDS, params=shapes).tables
    assert table.target_std == pytest.approx(1.0)
    assert table.std is None
