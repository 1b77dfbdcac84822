"""What a tied embedding must do in any framework; one subclass each says how that framework is called."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.blocks import reference
from tests.blocks.reference import CASES, EXERCISE, EXERCISE_CASE, IDS, TOLERANCE, Case, Weights

from tiebeam.core.initialising.predict import predict
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.zoo.schemes import SCHEMES

WIDTHS = (128, 256, 512, 1024)
VOCAB = 1024
REFUSED = {
    "no vocab": ({"vocab": 0}, "vocab of TiedEmbedding"),
    "a width that is no whole number": ({"width": 8.0}, "width of TiedEmbedding"),
    "a width that is a truth": ({"width": True}, "width of TiedEmbedding"),
    "no table width": ({"table_width": 0}, "table_width"),
    "a lookup factor of zero": ({"lookup_factor": 0.0}, r"lookup_factor .*\n.*\n.*\nHint: a factor multiplies"),
    "a lookup factor beyond all bounds": ({"lookup_factor": math.inf}, "lookup_factor"),
    "a readout factor of zero": ({"readout_factor": 0}, "readout_factor"),
    "a readout factor that is a word": ({"readout_factor": "1"}, "readout_factor"),
    "a soft cap below zero": ({"soft_cap": -30.0}, "soft_cap"),
    "a padding row beyond the table": ({"padding_idx": 11}, "0 to 10"),
    "a padding row from the end": ({"padding_idx": -1}, "Hint: a negative index"),
}


class BlockContract(ABC):
    """Subclass it as `Test...`; `block` is whatever the framework's methods take."""

    bias = "use_bias"
    names: ClassVar[dict[str, str]] = {}  # what the framework calls table, bias, project_in, project_out

    @abstractmethod
    def make(self, seed: int = 0, **arguments: Any) -> Any:
        """A block."""

    @abstractmethod
    def weights(self, block: Any) -> Weights:
        """Every weight by its path in the framework; projections as (inputs, outputs)."""

    @abstractmethod
    def load(self, block: Any, weights: Weights) -> Any:
        """The block with those weights."""

    @abstractmethod
    def look_up(self, block: Any, ids: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def read_out(self, block: Any, hidden: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def gradients(self, block: Any, mixing: np.ndarray, probe: np.ndarray) -> Weights:
        """Of the sum of logits times probe, where the hidden state is the rows of `IDS` times `mixing`."""

    def build(self, case: Case, seed: int = 0) -> Any:
        return self.make(seed, **case.arguments(self.bias))

    def loaded(self, case: Case) -> Any:
        w = reference.weights(case)
        return self.load(self.build(case), {self.names[name]: x for name, x in w.items()})

    def table(self, block: Any) -> np.ndarray:
        return self.weights(block)[self.names["table"]]

    @pytest.mark.parametrize("name", CASES)
    def test_equal_weights_give_the_logits_of_the_reference(self, name):
        case = CASES[name]
        block, w = self.loaded(case), reference.weights(case)
        rows = self.look_up(block, IDS)
        np.testing.assert_allclose(rows, reference.look_up(case, w, IDS), rtol=TOLERANCE, atol=TOLERANCE)
        got = self.read_out(block, rows @ reference.mixing(case))
        np.testing.assert_allclose(got, reference.logits(case, w), rtol=TOLERANCE, atol=TOLERANCE)

    @pytest.mark.parametrize("name", CASES)
    def test_the_tables_gradient_is_the_sum_of_both_roles(self, name):
        case = CASES[name]
        got = self.gradients(self.loaded(case), reference.mixing(case), reference.probe(case))
        want = reference.gradients(case, reference.weights(case))
        assert set(got) == {self.names[key] for key in reference.weights(case)}
        for key in reference.weights(case):
            np.testing.assert_allclose(got[self.names[key]], want[key], rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)
        assert np.abs(got[self.names["table"]] - want["readout"]).max() > 0.1  # neither role alone
        assert np.abs(got[self.names["table"]] - want["lookup"]).max() > 0.1

    @pytest.mark.parametrize("name", CASES)
    def test_a_block_owns_one_table_and_what_was_asked_for(self, name):
        case = CASES[name]
        want = {self.names[key]: x.shape for key, x in reference.weights(case).items()}
        assert {path: x.shape for path, x in self.weights(self.build(case)).items()} == want

    def test_ids_of_any_shape_are_looked_up(self):
        block = self.build(Case())
        assert self.look_up(block, np.zeros((2, 3, 4), np.int32)).shape == (2, 3, 4, 6)
        assert self.look_up(block, np.array(2, np.int32)).shape == (6,)
        assert self.read_out(block, np.ones(6, np.float32)).shape == (11,)

    # ---- the std of the rule

    @pytest.mark.parametrize(
        ("width", "readout_factor", "table_width"),
        [*((width, 1.0, None) for width in WIDTHS), (512, -0.05, None), (512, 1.0, 192)],
    )
    def test_a_fresh_block_gives_unit_logits_and_unit_rows(self, width, readout_factor, table_width):
        case = Case(VOCAB, width, readout_factor=readout_factor, table_width=table_width)
        block = self.build(case)
        want = 1.0 / (abs(readout_factor) * math.sqrt(case.inner))
        assert float(self.table(block).std()) == pytest.approx(want, rel=0.01)
        hidden = np.random.default_rng(0).standard_normal((16, width)).astype(np.float32)
        assert float(self.read_out(block, hidden).std()) == pytest.approx(1.0, rel=0.06)
        rows = self.look_up(block, np.arange(64, dtype=np.int32))
        # A logit factor moves the table's std, and the rows with it: the lookup's factor is the user's then.
        assert float(np.sqrt((rows**2).mean())) == pytest.approx(1.0 / abs(readout_factor), rel=0.06)

    def test_projections_keep_the_size_of_what_they_multiply(self):
        w = self.weights(self.build(Case(8, 256, table_width=64)))
        assert float(w[self.names["project_in"]].std()) == pytest.approx(1 / 8, rel=0.03)
        assert float(w[self.names["project_out"]].std()) == pytest.approx(1 / 16, rel=0.03)

    def test_a_seed_fixes_the_draw_and_another_changes_it(self):
        case = Case(table_width=4, bias=True)
        a, b, c = (self.weights(self.build(case, seed)) for seed in (1, 1, 2))
        for name, x in a.items():
            np.testing.assert_array_equal(x, b[name])
        assert not np.array_equal(a[self.names["table"]], c[self.names["table"]])
        assert not a[self.names["bias"]].any()

    # ---- the padding row

    def test_a_padding_row_starts_at_zero_and_no_other_does(self):
        table = self.table(self.build(Case(padding_idx=3)))
        np.testing.assert_array_equal(np.flatnonzero(~table.any(axis=1)), [3])
        assert self.table(self.build(Case())).any(axis=1).all()

    def test_the_lookup_of_padding_is_zero_whatever_its_row_has_become(self):
        case = Case(padding_idx=3, table_width=4)
        block = self.loaded(case)
        assert self.table(block)[3].any()
        rows = self.look_up(block, IDS)
        np.testing.assert_array_equal((rows == 0).all(axis=-1), IDS == 3)
        assert self.read_out(block, np.ones(6, np.float32))[3] != 0  # read out, it is a row like any other

    # ---- the documents that the project grew from

    def test_the_worked_example_of_a_direct_lookup_and_readout(self):
        block = self.load(self.build(EXERCISE_CASE), {self.names["table"]: EXERCISE.table})
        scores = self.read_out(block, self.look_up(block, EXERCISE.ids))
        np.testing.assert_array_equal(scores, EXERCISE.scores)
        assert scores[0, 1] > scores[0, 0]  # its own token need not score highest
        np.testing.assert_array_equal(scores[0], scores[2])  # repeated ids, equal rows

    def test_permuting_tokens_permutes_rows_and_the_own_score_is_a_squared_norm(self):
        block, order = self.build(Case(lookup_factor=1.0)), np.array([3, 0, 2, 1, 4])
        scores = self.read_out(block, self.look_up(block, IDS[0]))
        np.testing.assert_allclose(self.read_out(block, self.look_up(block, IDS[0][order])), scores[order], rtol=1e-6)
        norms = (self.table(block)[IDS[0]] ** 2).sum(-1)
        np.testing.assert_allclose(scores[np.arange(5), IDS[0]], norms, rtol=1e-5)

    def test_a_row_that_no_id_selects_gets_its_gradient_from_the_readout(self):
        case = Case()
        got = self.gradients(self.loaded(case), reference.mixing(case), reference.probe(case))[self.names["table"]]
        unread = sorted(set(range(case.vocab)) - set(IDS.ravel().tolist()))
        assert unread
        assert np.abs(got[unread]).min(axis=-1).max() > 0

    @pytest.mark.parametrize("name", ["C", "D"])
    def test_the_rule_draws_what_a_scheme_draws(self, name):
        scheme = SCHEMES[name]
        for width in (128, 512):
            case = Case(
                512, width, lookup_factor=scheme.lookup_factor(width), readout_factor=scheme.readout_factor(width)
            )
            assert float(self.table(self.build(case)).std()) == pytest.approx(scheme.table_std(width), rel=0.02)

    @pytest.mark.parametrize("name", ["A", "B", "C", "D", "F"])
    @pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[-1]])
    def test_schemes_start_where_the_closed_form_says(self, name, width):
        """The stream is the lookup alone, so kappa is 1."""
        scheme = SCHEMES[name]
        std, look, read = (f(width) for f in (scheme.table_std, scheme.lookup_factor, scheme.readout_factor))
        case = Case(VOCAB, width, lookup_factor=look, readout_factor=read)
        table = np.random.default_rng(0).normal(0.0, std, (VOCAB, width)).astype(np.float32)
        block = self.load(self.build(case), {self.names["table"]: table})
        ids = np.random.default_rng(1).integers(0, VOCAB, 65).astype(np.int32)
        rows = self.look_up(block, ids[:-1])
        logits = self.read_out(block, rows / np.sqrt((rows**2).mean(-1, keepdims=True))).astype(np.float64)
        facts = predict(
            vocab=VOCAB, width=width, std=std, lookup_factor=look, readout_factor=read, hidden_rms=1.0, kappa=1.0
        )
        others = logits[:, np.random.default_rng(2).permutation(VOCAB)[:512]]
        assert float(np.median(np.abs(others))) / 0.6745 == pytest.approx(facts.logit_std, rel=0.05)
        own = logits[np.arange(64), ids[:-1]].mean()
        assert own == pytest.approx(facts.own_logit, rel=0.05)
        losses = np.logaddexp.reduce(logits, axis=-1) - logits[np.arange(64), ids[1:]]
        spread = 4 * facts.logit_std / 8
        assert float(losses.mean()) == pytest.approx(facts.initial_loss, abs=0.05 + spread, rel=0.02)

    # ---- what is refused

    @pytest.mark.parametrize("what", REFUSED)
    def test_an_argument_that_makes_no_sense_is_refused_when_the_block_is_made(self, what):
        arguments, words = REFUSED[what]
        with pytest.raises(RangeError, match=words):
            self.make(**{"vocab": 11, "width": 6, **arguments})

    def test_a_hidden_state_is_not_looked_up(self):
        with pytest.raises(InputError, match=r"token ids\n.*float32\n.*\nHint: a hidden state is read out"):
            self.look_up(self.build(Case()), np.ones((2, 6), np.float32))

    def test_a_hidden_state_of_another_width_is_not_read_out(self):
        with pytest.raises(ShapeError, match=r"got: shape \(2, 5\)\n.*\(\.\.\., 6\)\nHint"):
            self.read_out(self.build(Case()), np.ones((2, 5), np.float32))
        with pytest.raises(ShapeError):  # of the stream's width, not the table's
            self.read_out(self.build(Case(table_width=4)), np.ones((2, 4), np.float32))
