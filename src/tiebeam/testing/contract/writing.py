"""What a backend writes."""

import hashlib
import math
from typing import Any

import numpy as np
import pytest

import tiebeam
from tiebeam.core.initialising.draws import blocks, draw_block
from tiebeam.testing.contract.base import OTHER_STD, Base, only, same
from tiebeam.testing.contract.models import FREE, GOLDEN, GOLDEN_DIGESTS, GOLDEN_SEED, PLAIN, TIED, UNTIED
from tiebeam.zoo.blueprint import Blueprint, Floats
from tiebeam.zoo.numpy.reference import passed


def draws(blueprint: Blueprint, seed: int, ordinal: int, std: float) -> Floats:
    """The table that every framework gets."""
    cut = blocks(blueprint.vocab)
    return np.concatenate([draw_block(seed, "table", ordinal, b.index, b.rows, blueprint.width, std) for b in cut])


class Writing(Base):
    """Draws, what they leave alone, and what a failure leaves."""

    def test_a_tied_table_gets_the_draws_of_every_framework(self) -> None:
        weights = self.drawn(self.build(PLAIN), PLAIN.inputs(), seed=3)
        assert weights["table"].tobytes() == draws(PLAIN, 3, 0, 1 / math.sqrt(PLAIN.width)).tobytes()

    def test_two_tables_get_draws_of_their_own_in_order_of_first_use(self) -> None:
        weights = self.drawn(self.build(UNTIED), UNTIED.inputs(), seed=3)
        assert weights["table"].tobytes() == draws(UNTIED, 3, 0, 1 / 3.0).tobytes()
        assert weights["head"].tobytes() == draws(UNTIED, 3, 1, 4 / math.sqrt(UNTIED.width)).tobytes()

    @pytest.mark.parametrize("dtype", GOLDEN_DIGESTS)
    def test_one_seed_gives_one_digest_in_every_framework(self, dtype: str) -> None:
        """float32 draws, rounded once to the table's dtype."""

        def digest() -> str:
            built = self.build(GOLDEN, dtype=dtype)
            table = self.drawn(built, GOLDEN.inputs(), seed=GOLDEN_SEED)["table"]
            return hashlib.sha256(np.ascontiguousarray(table, "<f4").tobytes()).hexdigest()

        if dtype == "bfloat16" and not self.able("bfloat16", digest):
            return
        assert digest() == GOLDEN_DIGESTS[dtype]

    def test_another_seed_gives_another_table(self) -> None:
        one, two = (self.drawn(self.build(PLAIN), PLAIN.inputs(), seed=seed)["table"] for seed in (0, 1))
        assert not np.array_equal(one, two)

    @pytest.mark.parametrize("name", TIED)
    def test_logits_start_at_unit_variance_as_numpy_sees_it(self, name: str) -> None:
        blueprint = TIED[name]
        weights, report = self.settled(blueprint)
        [done] = report.init
        assert done.settled, report.findings
        assert done.written
        run = passed(blueprint, weights, blueprint.inputs())
        assert float(run.uncapped.std()) == pytest.approx(1.0, abs=0.1)
        assert only(report).std == pytest.approx(done.std, rel=0.02)

    def test_where_the_hidden_state_follows_the_table_the_std_is_measured_and_settles(self) -> None:
        weights, report = self.settled(FREE)
        [done] = report.init
        assert done.mode == "empirical"
        assert 0 < done.rounds <= 8
        logits = passed(FREE, weights, FREE.inputs()).uncapped
        assert float(logits.std()) == pytest.approx(1.0, abs=0.03)
        assert done.measured_logit_std == pytest.approx(float(logits.std()), rel=1e-2)

    def test_measuring_may_be_asked_for_and_gives_the_logits_that_numpy_gives(self) -> None:
        built = self.build(PLAIN)
        holder, report = self.draw(built, PLAIN.inputs(), mode="empirical")
        assert report.init[0].mode == "empirical"
        measured = float(passed(PLAIN, built.arrays(holder), PLAIN.inputs()).logits.std())
        assert report.init[0].measured_logit_std == pytest.approx(measured, rel=1e-2)
        assert measured == pytest.approx(1.0, abs=0.03)

    @pytest.mark.parametrize("blueprint", [PLAIN, TIED["a gain"], FREE, UNTIED], ids=["plain", "gain", "free", "two"])
    def test_twice_equals_once_whatever_the_table_was(self, blueprint: Blueprint) -> None:
        once, _ = self.settled(blueprint)
        assert same(self.drawn(self.build(blueprint, once), blueprint.inputs()), once)
        assert same(self.drawn(self.build(blueprint), blueprint.inputs()), once)

    @pytest.mark.parametrize("name", ["a bias", "positions", "a padding row", "a gain"])
    def test_everything_but_tables_and_their_biases_is_untouched(self, name: str) -> None:
        blueprint = TIED[name]
        before, (after, _) = blueprint.weights(std=OTHER_STD), self.settled(blueprint)
        assert same(after, before, but=("table", "bias"))
        assert not np.array_equal(after["table"], before["table"])

    def test_a_bias_over_the_vocabulary_becomes_zero_and_is_named(self) -> None:
        blueprint = TIED["a bias"]
        weights, report = self.settled(blueprint)
        assert not weights["bias"].any()
        assert report.init[0].biases == self.build(blueprint).names["bias"]

    def test_a_row_of_zeros_stays_zero_and_no_other_becomes_it(self) -> None:
        blueprint = TIED["a padding row"]
        weights, report = self.settled(blueprint)
        table = weights["table"]
        assert not table[0].any()
        assert table[1:].any(axis=1).all()
        assert report.init[0].zero_rows == (0,)
        whole = draws(blueprint, 0, 0, 1 / math.sqrt(blueprint.width))
        assert np.array_equal(table[1:], whole[1:])  # the others are as they would be without it

    def test_of_functions_and_frozen_trees_the_old_weights_stay(self) -> None:
        built = self.build(PLAIN)
        before = built.arrays(built.holder)
        holder, _ = self.draw(built, PLAIN.inputs())
        if self.functional(built):
            assert same(built.arrays(built.holder), before)
            assert type(holder) is type(built.holder)
        else:
            assert holder is built.model

    def test_drawing_leaves_the_generators_as_they_were(self) -> None:
        built, states = self.build(PLAIN), self.random_states()
        self.draw(built, PLAIN.inputs())
        assert self.random_states() == states

    # -- shapes without values --

    def test_shapes_alone_give_the_structure_and_the_plan(self) -> None:
        def planned() -> tuple[Any, tiebeam.Report]:
            return self.draw(self.builder.abstract(GOLDEN), GOLDEN.inputs())

        if not self.able("abstract", planned):
            return
        _, report = planned()
        table, [done] = only(report), report.init
        assert report.meta
        assert (table.state, table.lookup_factor, table.readout_factor) == ("tied", 4.0, 0.5)
        assert (table.std, table.hidden_rms) == (None, 1.0)
        assert not done.written
        assert done.std == pytest.approx(GOLDEN.target_std, rel=1e-6)

    # -- a failure leaves everything as it was --

    def test_a_failed_call_changes_nothing(self) -> None:
        calls: list[tuple[Blueprint, Any, dict[str, Any], type[Exception]]] = [
            (PLAIN, PLAIN.inputs(), {"seed": -1}, tiebeam.RangeError),
            (PLAIN, PLAIN.inputs(), {"mode": "guess"}, tiebeam.RangeError),
            (FREE, FREE.inputs(), {"mode": "analytic"}, tiebeam.RangeError),
            (PLAIN, np.zeros((2, 3, 4, 5, 6), np.float32), {}, tiebeam.InputError),
        ]
        for blueprint, inputs, how, error in calls:
            built = self.build(blueprint.but(bias=True), blueprint.but(bias=True).weights())
            before, states = built.arrays(built.holder), self.random_states()
            with pytest.raises(error):
                self.draw(built, inputs, **how)
            assert same(built.arrays(built.holder), before), how
            assert self.random_states() == states, how

    @pytest.mark.parametrize("last", [0, 1])
    def test_a_pass_that_fails_half_way_leaves_the_tables_and_the_biases(
        self, last: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The std is found in rounds; the pass that fails measures logits after table and bias were written."""
        from tiebeam.backends import resolve

        blueprint = FREE.but(bias=True)
        built = self.build(blueprint, blueprint.weights(std=OTHER_STD))
        before = built.arrays(built.holder)
        kind: Any = type(resolve(built.model, built.params))
        whole, passes = kind.trace, 0

        def trace(model: Any, *args: Any, **how: Any) -> Any:
            nonlocal passes
            passes += bool(how.get("logits"))
            if passes > last:
                raise tiebeam.TraceError("the pass fails here")
            return whole(model, *args, **how)

        monkeypatch.setattr(kind, "trace", trace)
        with pytest.raises(tiebeam.TraceError, match="fails here"):
            self.draw(built, blueprint.inputs())
        assert passes == last + 1
        assert same(built.arrays(built.holder), before)
