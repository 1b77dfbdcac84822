"""What a backend sees."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tiebeam
from tiebeam.testing.contract.base import Base, codes, only, pair, same
from tiebeam.testing.contract.models import CLASSIFIER, FREE, PLAIN, SCALED, TIED, UNTIED
from tiebeam.zoo.blueprint import Blueprint, Step
from tiebeam.zoo.numpy.reference import passed, rms

every_tied = pytest.mark.parametrize("blueprint", TIED.values(), ids=TIED.keys())
FACTORS = st.builds(
    Step,
    st.floats(0.125, 8.0, width=32).flatmap(lambda x: st.sampled_from([x, -x])),
    st.sampled_from(["multiply", "divide", "negate", "double"]),  # an array among shapes has no value
)
CHAINS = st.lists(FACTORS, max_size=3).map(tuple)


def property_of(examples: int) -> Callable[[Any], Any]:
    """Settings of a property that several subclasses inherit."""
    return settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a model is small enough: shrinking takes minutes
        suppress_health_check=[HealthCheck.differing_executors],
    )


def cosine(a: Any, b: Any) -> float:
    """Mean cosine of rows."""
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return float(np.mean((a * b).sum(-1) / lengths))


class Seeing(Base):
    """Roles, states, names, factors, sizes, findings; and that looking changes nothing."""

    # -- the models themselves: without this, nothing below means anything --

    @every_tied
    def test_the_builder_builds_what_the_blueprint_describes(self, blueprint: Blueprint) -> None:
        built, weights = self.build(blueprint), blueprint.weights()
        assert same(built.arrays(built.holder), weights)
        logits = passed(blueprint, weights, blueprint.inputs()).logits
        np.testing.assert_allclose(built.logits(built.holder, blueprint.inputs()), logits, rtol=1e-3, atol=1e-4)

    # -- roles, states and names --

    @every_tied
    def test_a_tied_model_is_one_table_in_both_roles(self, blueprint: Blueprint) -> None:
        table = only(self.inspected(blueprint))
        assert table.state == "tied", table.notes
        assert table.tied
        assert (table.vocab, table.width) == (blueprint.vocab, blueprint.width)
        assert (len(table.lookups), len(table.readouts)) == (1, 1)

    def test_names_are_the_paths_of_the_parameters_owner_first(self) -> None:
        built = self.build(PLAIN)
        assert only(self.look(built, PLAIN.inputs())).names == built.names["table"]
        built = self.build(UNTIED)
        lookup, readout = pair(self.look(built, UNTIED.inputs()))
        assert (lookup.names, readout.names) == (built.names["table"], built.names["head"])

    def test_an_untied_model_is_two_tables_of_one_role_each(self) -> None:
        lookup, readout = pair(self.inspected(UNTIED))
        assert (lookup.state, readout.state) == ("untied", "untied")
        assert not lookup.readouts
        assert not readout.lookups
        assert lookup.lookup_factor == pytest.approx(3.0, rel=1e-6)
        assert readout.readout_factor == pytest.approx(-0.25, rel=1e-6)
        assert (lookup.readout_factor, readout.lookup_factor) == (None, None)

    def test_equal_values_in_two_places_are_a_copy_and_close_ones_have_drifted(self) -> None:
        weights = UNTIED.weights()
        weights["head"] = weights["table"].copy()
        assert {t.state for t in self.inspected(UNTIED, weights).tables} == {"copy"}
        weights["head"] = (weights["table"] * np.float32(1.01)).astype(np.float32)
        assert {t.state for t in self.inspected(UNTIED, weights).tables} == {"drifted"}

    def test_a_model_without_a_vocabulary_has_no_table(self) -> None:
        report = self.inspected(CLASSIFIER)
        assert report.tables == ()
        assert {f.code for f in report.findings} == {"no-table"}

    def test_a_report_names_its_framework_and_counts_every_parameter_once(self) -> None:
        report = self.inspected(PLAIN)
        assert report.framework == self.builder.framework
        assert report.parameters == sum(a.size for a in PLAIN.weights().values())
        assert not report.meta

    # -- factors --

    @every_tied
    def test_factors_are_exact_and_keep_their_sign(self, blueprint: Blueprint) -> None:
        table = only(self.inspected(blueprint))
        assert table.lookup_factor == pytest.approx(blueprint.lookup_factor, rel=1e-6), table.notes
        assert table.readout_factor == pytest.approx(blueprint.readout_factor, rel=1e-6), table.notes

    @property_of(10)
    @given(lookup=CHAINS, before=CHAINS, after=CHAINS)
    def test_whatever_is_multiplied_the_product_is_the_factor(
        self, lookup: tuple[Step, ...], before: tuple[Step, ...], after: tuple[Step, ...]
    ) -> None:
        blueprint = Blueprint(lookup=lookup, before=before, after=after)
        shapes = "abstract" not in self.cannot  # with no values to measure a pass is soon done
        built = self.builder.abstract(blueprint) if shapes else self.build(blueprint)
        table = only(self.look(built, blueprint.inputs()))
        assert table.lookup_factor == pytest.approx(blueprint.lookup_factor, rel=1e-6)
        assert table.readout_factor == pytest.approx(blueprint.readout_factor, rel=1e-6)

    @pytest.mark.parametrize("name", ["a chain", "an array", "lookup and readout", "a divisor and a sign"])
    def test_moving_a_table_in_one_role_moves_the_logits_by_the_factor_that_is_reported(self, name: str) -> None:
        """Numbers alone, no trace: the framework runs models whose tables differ, and a slope is fitted."""
        table = only(self.inspected(TIED[name]))
        untied = TIED[name].but(tied=False)
        weights, built = untied.weights(), self.build(untied)
        delta = untied.weights(seed=9)["head"]
        moved = self.rebuilt(untied, {**weights, "head": weights["head"] + delta}, built)
        change = moved - self.rebuilt(untied, weights, built)
        hidden = passed(untied, weights, untied.inputs()).hidden
        assert slope(hidden @ delta.T, change) == pytest.approx(table.readout_factor, rel=1e-4)
        straight = untied.but(norm="none")  # and an empty body: logits are linear in the rows
        weights = {n: a * np.float32(n != "mid") for n, a in straight.weights().items()}
        rows = weights["table"][straight.inputs()].astype(np.float64)
        logits = self.rebuilt(straight, weights, self.build(straight))
        assert table.lookup_factor is not None
        assert table.readout_factor is not None
        both = table.lookup_factor * table.readout_factor
        assert slope(rows @ weights["head"].T, logits) == pytest.approx(both, rel=1e-4)

    def test_a_soft_cap_is_its_bound_and_none_where_there_is_none(self) -> None:
        table = only(self.inspected(TIED["a soft cap"]))
        assert table.soft_cap == pytest.approx(15.0, rel=1e-6)
        assert only(self.inspected(PLAIN)).soft_cap is None

    def test_a_bias_over_the_vocabulary_is_seen_by_its_name(self) -> None:
        built = self.build(TIED["a bias"])
        table = only(self.look(built, PLAIN.inputs()))
        assert table.readout_bias
        assert table.readouts[0].bias == built.names["bias"]
        assert not only(self.inspected(PLAIN)).readout_bias

    def test_rows_that_are_only_read_through_a_normalisation_are_told_from_a_residual_stream(self) -> None:
        assert only(self.inspected(TIED["normalised rows"])).norm_after_lookup
        assert not only(self.inspected(PLAIN)).norm_after_lookup

    def test_a_normalisation_before_the_readout_is_seen_and_its_absence_too(self) -> None:
        for blueprint in TIED.values():
            assert only(self.inspected(blueprint)).readouts[0].normalized == (blueprint.norm != "none")

    # -- sizes and predictions, against NumPy --

    @every_tied
    def test_sizes_are_those_of_a_pass_in_numpy(self, blueprint: Blueprint) -> None:
        weights = blueprint.weights()
        run = passed(blueprint, weights, blueprint.inputs())
        table = only(self.inspected(blueprint))
        assert table.hidden_rms == pytest.approx(rms(run.hidden), rel=1e-4)
        assert table.std == pytest.approx(rms(weights["table"]), rel=1e-5)
        if not blueprint.positions:
            assert table.lookups[0].rms == pytest.approx(rms(run.rows), rel=1e-4)

    @every_tied
    def test_the_std_for_unit_logits_follows_from_what_was_measured(self, blueprint: Blueprint) -> None:
        weights = blueprint.weights()
        hidden = rms(passed(blueprint, weights, blueprint.inputs()).hidden)
        target = 1 / (abs(blueprint.readout_factor) * hidden * math.sqrt(blueprint.width))
        table = only(self.inspected(blueprint))
        assert table.target_std == pytest.approx(target, rel=1e-3)
        assert table.lr_ratio == pytest.approx(target * math.sqrt(blueprint.width), rel=1e-3)

    def test_a_table_that_is_only_looked_up_wants_rows_of_size_one(self) -> None:
        lookup, readout = pair(self.inspected(UNTIED))
        assert lookup.target_std == pytest.approx(1 / 3, rel=1e-6)
        assert readout.target_std == pytest.approx(4 / math.sqrt(UNTIED.width), rel=1e-3)

    @pytest.mark.parametrize("name", ["plain", "a divisor and a sign", "RMS norm", "a chain", "a gain"])
    def test_what_is_predicted_comes_true(self, name: str) -> None:
        blueprint = TIED[name]
        weights = blueprint.weights()
        run = passed(blueprint, weights, blueprint.inputs())
        predicted = only(self.inspected(blueprint)).predicted
        s = abs(blueprint.readout_factor) * rms(run.hidden) * rms(weights["table"]) * math.sqrt(blueprint.width)
        assert predicted.log_vocab == pytest.approx(math.log(blueprint.vocab))
        assert predicted.logit_std == pytest.approx(s, rel=1e-3)
        assert predicted.lookup_rms == pytest.approx(rms(run.rows), rel=0.1)
        kappa = cosine(run.stream, weights["table"][blueprint.inputs()])
        sign = math.copysign(1.0, blueprint.readout_factor)
        assert predicted.own_logit == pytest.approx(sign * kappa * s * math.sqrt(blueprint.width), rel=1e-2)
        assert predicted.initial_loss == pytest.approx(first_loss(run.logits, blueprint.inputs()), rel=0.1)

    # -- findings and the report --

    @pytest.mark.parametrize("name", ["plain", "lookup and readout", "a soft cap", "positions", "RMS norm"])
    def test_a_healthy_model_needs_no_mending(self, name: str) -> None:
        report = self.inspected(TIED[name])
        report.assert_healthy()
        assert codes(report) == set()

    def test_a_table_of_std_one_without_a_factor_is_an_error_and_one_that_is_not_finite_too(self) -> None:
        report = self.inspected(PLAIN, PLAIN.weights(std=1.0))
        assert "init-scale" in {f.code for f in report.findings if f.severity == "error"}
        with pytest.raises(tiebeam.UnhealthyTie, match="init-scale"):
            report.assert_healthy()
        weights = PLAIN.weights()
        weights["table"][7, 3] = np.nan
        assert only(self.inspected(PLAIN, weights)).finite is False

    def test_a_copy_is_not_a_tie_and_that_is_said_where_it_stands(self) -> None:
        weights = UNTIED.weights()
        weights["head"] = weights["table"].copy()
        built = self.build(UNTIED, weights)
        found = [f for f in self.look(built, UNTIED.inputs()).findings if f.code == "copy-not-tie"]
        assert found
        assert found[0].where in (*built.names["table"], *built.names["head"])

    @pytest.mark.parametrize("blueprint", [PLAIN, UNTIED, FREE, CLASSIFIER], ids=["tied", "untied", "free", "none"])
    def test_a_report_is_valid_json_by_its_published_schema(self, blueprint: Blueprint) -> None:
        from importlib.resources import files

        from jsonschema import Draft202012Validator

        schema = json.loads(files("tiebeam.reports").joinpath("schema-1.json").read_text(encoding="utf-8"))
        Draft202012Validator(schema).validate(json.loads(self.inspected(blueprint).to_json()))

    # -- looking changes nothing --

    @every_tied
    def test_looking_leaves_weights_and_generators_as_they_were(self, blueprint: Blueprint) -> None:
        built = self.build(blueprint)
        before, states = built.arrays(built.holder), self.random_states()
        inputs = blueprint.inputs()
        self.look(built, inputs)
        assert same(built.arrays(built.holder), before)
        assert self.random_states() == states
        assert np.array_equal(inputs, blueprint.inputs())

    def test_looking_twice_gives_one_report(self) -> None:
        built = self.build(SCALED)
        assert self.look(built, SCALED.inputs()) == self.look(built, SCALED.inputs())


def slope(x: Any, y: Any) -> float:
    """Least squares through 0."""
    return float((x * y).sum() / (x * x).sum())


def first_loss(logits: Any, ids: Any) -> float:
    """Mean cross entropy of each next token."""
    z, targets = logits[:, :-1], ids[:, 1:, None]
    largest = z.max(-1, keepdims=True)
    norm = largest[..., 0] + np.log(np.exp(z - largest).sum(-1))
    return float(np.mean(norm - np.take_along_axis(z, targets, -1)[..., 0]))
