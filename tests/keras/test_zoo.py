"""The zoo's model under every scheme: what the scheme says is what is seen, and what follows comes true."""

import keras
import numpy as np
import pytest
from tests.keras.models.kit import numbers

import tiebeam
from tiebeam.zoo.keras.gpt import gpt
from tiebeam.zoo.schemes import SCHEMES, scheme

VOCAB, WIDTH = 1000, 64
IDS = np.random.default_rng(5).integers(0, VOCAB, (4, 48)).astype("int32")


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_is_seen_as_it_is_written(name: str) -> None:
    keras.backend.clear_session(free_memory=False)
    model, rule = gpt(name, vocab=VOCAB, width=WIDTH, layers=1), scheme(name)
    report = tiebeam.inspect(model, IDS)
    lookup = next(t for t in report.tables if t.lookups)
    readout = next(t for t in report.tables if t.readouts)
    assert lookup.state == ("tied" if rule.tie else "untied")
    assert lookup.lookup_factor == pytest.approx(rule.lookup_factor(WIDTH), rel=1e-6)
    assert readout.readout_factor == pytest.approx(rule.readout_factor(WIDTH), rel=1e-6)
    logits = numbers(model(IDS))
    assert readout.predicted.logit_std == pytest.approx(float(logits.std()), rel=0.25)
    logp = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    logp -= logits.max(-1, keepdims=True)
    loss = -float(np.take_along_axis(logp[:, :-1], IDS[:, 1:, None], -1).mean())
    if name != "A":  # with logits of such a size a loss of this few tokens says little
        assert readout.predicted.initial_loss == pytest.approx(loss, rel=0.07)


def test_a_capped_model_in_mixed_precision() -> None:
    keras.backend.clear_session(free_memory=False)
    model = gpt("C", vocab=VOCAB, width=WIDTH, layers=1, soft_cap=30.0, dtype="mixed_bfloat16")
    [table] = tiebeam.inspect(model, IDS).tables
    assert (table.state, table.soft_cap, table.lookup_factor, table.dtype) == ("tied", 30.0, 8.0, "float32")
