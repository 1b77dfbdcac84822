"""What measuring and checking must give in every framework: the numbers of the NumPy model.

A framework's test says how it builds that model, and inherits the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tiebeam
from tiebeam.core.measuring.measurement import Measurement
from tiebeam.zoo.numpy.tied import TiedModel, own_rank

VOCAB, WIDTH, HIDDEN = 64, 16, 12
REFERENCE = TiedModel.random(VOCAB, WIDTH, hidden=HIDDEN, res=0.5, lookup_factor=3.0, readout_factor=0.75, seed=3)
IDS = np.random.default_rng(0).integers(0, VOCAB, (2, 6))
_MADE: dict[type, dict[str, Any]] = {}
TOLERANCE: dict[str, float] = {"rtol": 1e-6, "atol": 1e-6}  # the models are in float32


def by_hand(ids: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss, and what lookup and readout send to the table."""
    lookup = REFERENCE.backward(ids, targets, readout="dropped").parameters["table"]
    readout = REFERENCE.backward(ids, targets, lookup="dropped").parameters["table"]
    return REFERENCE.loss(ids, targets), lookup, readout


def close(got: Any, want: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(got), want, **TOLERANCE)


@dataclass
class Built:
    """The reference model in a framework.

    Attributes:
        params: For models that hold none.
    """

    model: Any
    params: Any = None


class MeasureContract:
    """Inherit and say how the model is built."""

    def build(self) -> Built:
        """The reference model, in float32."""
        raise NotImplementedError

    def arrays(self, built: Built) -> Mapping[str, np.ndarray]:
        """Every parameter of it, copied."""
        raise NotImplementedError

    def measured(self, built: Built, batch: Any = IDS, **more: Any) -> Measurement:
        return tiebeam.measure(built.model, batch, params=built.params, **more)

    @pytest.fixture
    def built(self) -> Built:
        return self._once("built", self.build)

    @pytest.fixture
    def found(self, built: Built) -> Measurement:
        return self._once("found", lambda: self.measured(built, grad=True, spectrum=True))

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """Made by the first test of a class that wants it: frameworks compile."""
        kept = _MADE.setdefault(type(self), {})
        if name not in kept:
            kept[name] = make()
        return kept[name]

    def test_each_role_sends_what_the_backward_pass_by_hand_says(self, found: Measurement) -> None:
        loss, lookup, readout = by_hand(IDS[:, :-1], IDS[:, 1:])
        assert found.targets == "next tokens"
        assert found.initial_loss == pytest.approx(loss, rel=1e-5)
        close(found.roles["lookup"].grad, lookup)
        close(found.roles["readout"].grad, readout)
        assert found.roles["lookup"].rows == len(np.unique(IDS[:, :-1]))
        assert found.roles["readout"].rows == VOCAB
        assert found.role_ratio == pytest.approx(np.linalg.norm(lookup) / np.linalg.norm(readout), rel=1e-5)
        cosine = (lookup * readout).sum() / np.linalg.norm(lookup) / np.linalg.norm(readout)
        assert found.role_cosine == pytest.approx(cosine, abs=1e-5)
        assert [t.unaccounted for t in found.tables] == [0.0]

    def test_figures_are_those_of_the_numpy_model(self, found: Measurement) -> None:
        rows = REFERENCE.lookup_factor * REFERENCE.table[IDS]
        logits = REFERENCE.logits(IDS)
        own = np.take_along_axis(logits, IDS[..., None], axis=-1)
        assert found.log_vocab == pytest.approx(np.log(VOCAB))
        assert found.lookup_rms == pytest.approx(np.sqrt((rows**2).mean()), rel=1e-5)
        assert found.logit_std == pytest.approx(logits.std(), rel=1e-4)
        assert found.own_logit == pytest.approx(own.mean(), rel=1e-5)
        assert found.own_rank == own_rank(logits, IDS)
        [table] = found.tables
        assert table.state == "tied"
        assert table.spectrum is not None
        np.testing.assert_allclose(table.spectrum.values, np.linalg.svd(REFERENCE.table, compute_uv=False), rtol=1e-4)

    def test_labels_count_where_they_are_given(self, built: Built) -> None:
        labels = np.random.default_rng(1).integers(0, VOCAB, IDS.shape)
        loss, lookup, readout = by_hand(IDS, labels)
        found = self.measured(built, (IDS, labels), grad=True)
        assert found.targets == "labels"
        assert found.initial_loss == pytest.approx(loss, rel=1e-5)
        close(found.roles["lookup"].grad, lookup)
        close(found.roles["readout"].grad, readout)

    def test_nothing_is_changed_and_a_second_look_sees_the_same(self, built: Built, found: Measurement) -> None:
        before = dict(self.arrays(built))
        again = self.measured(built, grad=True, spectrum=True)
        after = self.arrays(built)
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[n], after[n]) for n in before)
        assert again.to_dict() == found.to_dict()

    def test_drift_is_along_the_role_that_it_follows(self, built: Built, found: Measurement) -> None:
        *_, readout = by_hand(IDS[:, :-1], IDS[:, 1:])
        [name] = [t.name for t in found.tables]
        earlier = {name: np.asarray(REFERENCE.table + 1e-3 * readout, np.float32)}  # now: a step down from there
        [table] = self.measured(built, since=earlier).tables
        assert table.drift is not None
        assert table.drift.readout == pytest.approx(1.0, abs=1e-3)
        assert table.drift.moved == pytest.approx(
            1e-3 * np.linalg.norm(readout) / np.linalg.norm(earlier[name]), rel=1e-2
        )

    def test_a_backward_pass_that_is_right_passes(self, built: Built) -> None:
        found = tiebeam.check_gradients(built.model, IDS, params=built.params, rows=2)
        assert found.ok, str(found)
        assert (found.held, found.vocab, found.wrong_rows) == (len(np.unique(IDS)), VOCAB, 0)

    @pytest.mark.parametrize(
        ("batch", "word"),
        [
            (np.zeros((2, 1), int), "none of which counts"),
            ((IDS, np.full(IDS.shape, -100)), "none of which counts"),
            ((IDS, IDS[:, :3]), "do not fit"),
            (np.zeros((0, 4), int), "empty|nothing to look up"),
        ],
    )
    def test_a_batch_without_targets_is_refused(self, built: Built, batch: Any, word: str) -> None:
        with pytest.raises(tiebeam.InputError, match=word):
            self.measured(built, batch)


def settings() -> dict[str, float]:
    """Factors of the reference, as the building blocks take them."""
    return {"lookup_factor": REFERENCE.lookup_factor, "readout_factor": REFERENCE.readout_factor}


def single(array: np.ndarray | None) -> np.ndarray:
    """A parameter of the reference in float32."""
    assert array is not None
    return np.asarray(array, np.float32)
