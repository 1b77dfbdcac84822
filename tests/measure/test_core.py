"""Rules that need no framework: targets, spectra, and what a measurement says."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.core.measuring.measurement import Measurement, assemble
from tiebeam.core.measuring.passes import Passed, Sent, Wanted
from tiebeam.core.measuring.spectrum import spectrum
from tiebeam.core.measuring.targets import IGNORED, targets_of
from tiebeam.errors import InputError

IDS = np.array([[4, 5, 6], [7, 8, 9]])


def test_without_labels_every_token_should_say_the_next_and_the_last_says_nothing() -> None:
    targets, said = targets_of(IDS, None, None, (2, 3), 20)
    assert said == "next tokens"
    np.testing.assert_array_equal(targets, [[5, 6, IGNORED], [8, 9, IGNORED]])


def test_labels_that_repeat_the_ids_are_moved_and_others_stay() -> None:
    partly = np.where(IDS == 8, IGNORED, IDS)
    moved, said = targets_of(IDS, partly, None, (2, 3), 20)
    assert said == "labels, moved by one"
    np.testing.assert_array_equal(moved, [[5, 6, IGNORED], [IGNORED, 9, IGNORED]])
    other, said = targets_of(IDS, IDS + 1, None, (2, 3), 20)
    assert said == "labels"
    np.testing.assert_array_equal(other, IDS + 1)


def test_padding_is_no_target() -> None:
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    targets, _ = targets_of(IDS, None, mask, (2, 3), 20)
    np.testing.assert_array_equal(targets, [[5, IGNORED, IGNORED], [8, 9, IGNORED]])


@pytest.mark.parametrize(
    ("ids", "labels", "rows", "word"),
    [
        (None, None, (2, 3), "no targets"),
        (np.array([[4], [5]]), None, (2, 1), "none of which counts"),
        (IDS, np.full((2, 3), IGNORED), (2, 3), "none of which counts"),
        (IDS, IDS[:, :2], (2, 3), "do not fit"),
        (IDS, IDS * 0.5, (2, 3), "do not fit"),
    ],
)
def test_a_batch_without_targets_is_refused(ids, labels, rows, word) -> None:
    with pytest.raises(InputError, match=word):
        targets_of(ids, labels, None, rows, 20)


@pytest.mark.parametrize("wrong", [9, -1])
def test_a_target_that_is_no_token_is_refused(wrong: int) -> None:
    labels = np.array([[4, wrong, IGNORED], [7, 8, 0]])
    with pytest.raises(InputError, match=f"labels of {wrong}"):
        targets_of(IDS, labels, None, (2, 3), 9)
    targets_of(IDS, labels, np.array([[1, 0, 1], [1, 1, 1]]), (2, 3), 9)  # where nothing counts it does not matter


@given(st.integers(1, 6), st.integers(0, 50))
def test_a_spectrum_is_that_of_the_table(width: int, seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(9, width))
    found = spectrum(table.T @ table)
    assert found is not None
    np.testing.assert_allclose(found.values, np.linalg.svd(table, compute_uv=False), rtol=1e-6)
    assert 1.0 - 1e-9 <= found.effective_rank <= width + 1e-9
    assert found.top_share == pytest.approx(found.values[0] ** 2 / (table**2).sum())


def test_one_direction_has_rank_one_and_what_is_not_finite_has_none() -> None:
    row = np.arange(1.0, 4.0)
    one = spectrum(np.outer(row, row))
    assert one is not None
    assert one.effective_rank == pytest.approx(1.0, abs=1e-6)
    assert spectrum(np.full((2, 2), np.nan)) is None
    assert spectrum(np.zeros((2, 2))) is None


def table(*, lookup: bool = True, readout: bool = True, trainable: bool = True, name: str = "embed") -> Table:
    return Table(
        names=(name,),
        vocab=100,
        width=16,
        dtype="float32",
        state="tied" if lookup and readout else "cut",
        lookups=(Lookup(name, "embed", "gather", 1.0, gradient=lookup, rms=0.5),),
        readouts=(Readout(name, "head", 1.0, gradient=readout, logit_std=2.0, kappa=0.9),),
        hidden_rms=1.0,
        trainable=trainable,
    )


def measured(seen: Table, **answers: object) -> Measurement:
    asked = Wanted((), (), None, None, None, (0, 0))
    return assemble("Tiny", "numpy", (seen,), asked, Passed(4.0, "labels", **answers))  # type: ignore[arg-type]


def test_names_are_the_ones_promised_and_plain_data_is_json() -> None:
    found = measured(table(), own_rank=3.0, sent={(0, "lookup"): Sent(1.0, 7), (0, "readout"): Sent(4.0, 100)})
    assert (found.log_vocab, found.role_ratio, found.kappa) == (math.log(100), 0.25, 0.9)
    assert (found.logit_std, found.lookup_rms, found.hidden_rms) == (2.0, 0.5, 1.0)
    assert found.chance_rank == 50.5
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["roles"]["lookup"] == {"table": "embed", "vocab": 100, "grad_norm": 1.0, "rows": 7}
    assert "own rank" in str(found)
    assert "50.5" in str(found)


def test_a_role_that_is_cut_sends_nothing_and_the_ratio_is_unknown_where_it_would_divide_by_it() -> None:
    found = measured(table(readout=False), sent={(0, "lookup"): Sent(1.0, 7)})
    assert found.roles["readout"].grad_norm == 0.0
    assert found.role_ratio is None
    assert any("no gradient comes back from the readout in 'head'" in n for n in found.notes)


def test_a_frozen_table_is_said_to_be_frozen() -> None:
    found = measured(table(trainable=False))
    assert found.roles["lookup"].grad_norm is None
    assert found.notes == ("'embed' is frozen: it gets no gradient",)


def test_a_split_that_is_not_complete_is_said() -> None:
    assert measured(table(), unaccounted={0: 0.0}).notes == ()
    [note] = measured(table(), unaccounted={0: 0.5}).notes
    assert "0.5 of its gradient's norm" in note


def test_a_gradient_that_overflows_is_said_and_not_called_incomplete() -> None:
    found = measured(table(), sent={(0, "readout"): Sent(math.inf, 100)}, unaccounted={0: math.nan})
    assert found.notes == ("'embed': the gradient that its readout sends is not finite",)
