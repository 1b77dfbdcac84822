"""keras_hub's architectures: what tiebeam says of them, held against a probe that changes the table in one role."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from tests.keras.models.hub import HUB, VOCAB, Hub
from tests.keras.models.kit import numbers

import tiebeam

pytest.importorskip("keras_hub", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
every_hub = pytest.mark.parametrize("name", HUB)


@contextmanager
def watched(layer: keras.Layer, call: Any) -> Iterator[None]:
    """Replace what a layer does: `call` gets its own call first."""
    before = layer.call
    vars(layer)["call"] = lambda *args, **kwargs: call(before, *args, **kwargs)
    try:
        yield
    finally:
        del vars(layer)["call"]


def model_of(hub: Hub) -> tuple[Any, Any]:
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    return hub.build()


@cache
def shared_model_of(name: str) -> tuple[Any, Any]:
    """For tests that leave it as it was: building takes most of their time."""
    return model_of(HUB[name])


def inputs_of(model: Any) -> Any:
    """Token ids, ones for a mask, zeros for segments, the first places for what is masked out."""
    rng = np.random.default_rng(5)
    made = {}
    for name in model.input:
        shape = (2, 6)
        if name.endswith("mask"):
            made[name] = np.ones(shape, "int32")
        elif name.startswith("segment"):
            made[name] = np.zeros(shape, "int32")
        elif name.endswith("positions"):
            made[name] = np.tile(np.arange(6, dtype="int32"), (2, 1))
        elif model.input[name].dtype.startswith("float"):
            made[name] = np.zeros([n or (2 if i == 0 else 0) for i, n in enumerate(model.input[name].shape)], "float32")
        else:
            made[name] = rng.integers(2, VOCAB, shape).astype("int32")
    return made


class Probe:
    """A run of a task with the table moved in one role, and what went in and out of both.

    Attributes:
        rows: What the first layer behind the lookup got; `hidden`: what the readout got.
    """

    def __init__(self, backbone: Any, task: Any, first: str) -> None:
        self.table_layer, self.task = backbone.token_embedding, task
        self.first = backbone.get_layer(first)
        self.rows: Any = None
        self.hidden: Any = None

    def __call__(self, inputs: Any, *, lookup: Any = 0.0, readout: Any = 0.0) -> Any:
        table = self.table_layer._embeddings
        whole = numbers(table)
        reverse = None if self.table_layer.tie_weights else self.table_layer.reverse_embeddings

        def both(call: Any, x: Any, reverse: bool = False) -> Any:
            if reverse:
                self.hidden = numbers(x)
            table.assign(whole + (readout if reverse else lookup))
            result = call(x, reverse=reverse)
            table.assign(whole)
            return result

        def first(call: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            self.rows = numbers(x)
            return call(x, *args, **kwargs)

        kept = None if reverse is None else numbers(reverse)
        if reverse is not None:
            reverse.assign(kept + np.transpose(readout + np.zeros_like(whole)))
        with watched(self.table_layer, both), watched(self.first, first):
            logits = numbers(self.task(inputs))
        if reverse is not None:
            reverse.assign(kept)
        return logits


@every_hub
def test_a_task_is_seen_as_it_runs(name: str) -> None:
    hub = HUB[name]
    backbone, task = shared_model_of(name)
    inputs = inputs_of(task)
    report = tiebeam.inspect(task, inputs)
    path = backbone.token_embedding._embeddings.path
    looked = next(t for t in report.tables if path in t.names and t.lookups)
    read = next(t for t in report.tables if t.readouts)
    assert looked.state == read.state == ("tied" if hub.tied else "untied")
    assert (looked is read) == hub.tied
    assert (looked.vocab, looked.width) == (VOCAB, hub.width)
    assert looked.lookup_factor == pytest.approx(hub.lookup_factor, rel=1e-6)
    assert read.readout_factor == pytest.approx(1.0, rel=1e-6)
    assert (read.soft_cap, read.readout_bias) == (hub.soft_cap, hub.bias)
    assert looked.norm_after_lookup == hub.norm_after_lookup
    assert read.readouts[0].normalized

    probe = Probe(backbone, task, hub.first)
    delta = np.random.default_rng(7).standard_normal((VOCAB, hub.width)).astype("float32") * 1e-2
    before = probe(inputs)
    rows, hidden = probe.rows, probe.hidden
    ids = inputs[next(n for n in inputs if n.endswith("token_ids"))]
    probe(inputs, lookup=delta)
    np.testing.assert_allclose(probe.rows - rows, looked.lookup_factor * delta[ids], rtol=1e-3, atol=1e-5)
    after = probe(inputs, readout=delta)
    np.testing.assert_allclose(after - before, read.readout_factor * hidden @ delta.T, rtol=1e-2, atol=1e-4)
    rms = float(np.sqrt(np.mean(hidden**2)))
    assert read.hidden_rms == pytest.approx(rms, rel=1e-3)


@every_hub
def test_a_backbone_alone_has_a_lookup_alone(name: str) -> None:
    hub = HUB[name]
    backbone, _ = shared_model_of(name)
    table = next(t for t in tiebeam.inspect(backbone).tables if t.lookups)
    assert (table.state, table.readouts) == ("untied", ())
    assert table.lookup_factor == pytest.approx(hub.lookup_factor, rel=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "gemma", "bert", "llama3"])
def test_inputs_are_made_where_none_are_given(name: str) -> None:
    _, task = shared_model_of(name)
    report = tiebeam.inspect(task)
    assert any(t.readouts for t in report.tables)
    assert not [f.code for f in report.findings if f.severity == "error"]


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "albert"])
def test_a_task_starts_at_unit_logits(name: str) -> None:
    _, task = model_of(HUB[name])
    inputs = inputs_of(task)
    report = tiebeam.initialize(task, inputs)
    assert report.init[0].settled
    assert numbers(task(inputs)).std() == pytest.approx(1.0, rel=0.25)
