"""The rules as algebra: units, plans, and what an optimizer's facts make a finding say."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.optim import examples

import tiebeam
from tiebeam.core.facts import Readout, Table
from tiebeam.core.findings import CATALOG
from tiebeam.core.findings.optimizers import facts_notes, optimizer_findings
from tiebeam.core.training.groups import Group, GroupPlan, Parameter, plan_groups
from tiebeam.core.training.optimizers import POWERS, REFUSED, RULES, Rule, family_of, rule

ratios = st.floats(1e-3, 1e3)
TABLE = Table(("wte", "head"), 500, 64, "float32", "tied", readouts=(Readout("head", "", 0.125),), lr_ratio=8.0)
BODY = [Parameter(("mlp",), 2), Parameter(("positions",), 2, embedding=True), Parameter(("norm",), 1)]
MODEL = [Parameter(("wte", "head"), 2), *BODY]


def group_of(plan: GroupPlan, name: str) -> Group:
    [found] = [g for g in plan.groups if name in g.names]
    return found


@pytest.mark.parametrize("law", RULES.values(), ids=lambda law: law.name)
def test_a_rule_s_units_agree(law: Rule) -> None:
    """Whatever is added up has one unit, and what is subtracted from the table has the table's."""
    gradient, table = -1, 1
    added_to = {"added to the gradient": gradient, "added to the normalised update": 0}
    if law.decay_is in added_to:
        assert law.decay + table == added_to[law.decay_is]
    else:
        assert law.decay + law.rate == 0
    assert {POWERS[q] for q in law.settings.values()} <= {-1, -2, 1}
    # By what the rate is multiplied: a gradient, a number, or the table's own size.
    assert law.rate in {table - gradient, table, 0}
    assert law.entrywise <= (law.rate == 1)


@given(ratios, st.sampled_from(sorted(RULES)))
def test_a_plan_scales_by_the_powers_of_its_rule(c: float, name: str) -> None:
    law = RULES[name]
    own = group_of(plan_groups(MODEL, [TABLE], optimizer=name, ratios={"wte": c}), "wte")
    assert own.rate == pytest.approx(c**law.rate)
    assert own.decay == pytest.approx(c**law.decay)
    assert own.factor("gradient") * own.factor("parameter") == pytest.approx(1.0)
    assert own.factor("square") == pytest.approx(own.factor("gradient") ** 2)


@given(ratios, ratios, st.sampled_from(sorted(RULES)))
def test_scaling_twice_is_scaling_once(a: float, b: float, name: str) -> None:
    def rate(c: float) -> float:
        return group_of(plan_groups(MODEL, [TABLE], optimizer=name, ratios={"wte": c}), "wte").rate

    assert rate(a * b) == pytest.approx(rate(a) * rate(b))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=8), st.booleans())
def test_groups_partition_what_is_trainable(kinds: list[tuple[int, bool, bool]], muon: bool) -> None:
    parameters = [Parameter((f"p{i}",), axes, e, t) for i, (axes, e, t) in enumerate(kinds)]
    plan = plan_groups([*parameters, *MODEL], [TABLE], optimizer="muon" if muon else "adamw")
    held = [n for g in plan.groups for n in g.names]
    assert sorted(held) == sorted(p.names[0] for p in [*parameters, *MODEL] if p.trainable)
    assert all(g.names for g in plan.groups)
    assert all(g.decay == 0 for g in plan.groups if g.kind == "vectors")


@given(st.integers(1, 12), st.integers(1, 12))
def test_at_every_width_a_row_of_the_table_moves_alike_and_the_body_by_its_fan_in(base: int, more: int) -> None:
    width, lr = base * more, 1.0
    factor = base / width
    table = replace(TABLE, width=width, vocab=width + 1, readouts=(Readout("head", "", factor),), readout_factor=factor)
    plan = plan_groups(MODEL, [replace(table, lr_ratio=1 / factor)], base_width=base)
    assert group_of(plan, "wte").rate * lr == pytest.approx(1.0)
    assert group_of(plan, "mlp").rate * width == pytest.approx(base)
    assert group_of(plan, "positions").rate == group_of(plan, "norm").rate == 1.0


def test_the_missing_factor_is_named() -> None:
    with pytest.raises(tiebeam.RangeError, match=r"a factor of 0\.5 is missing"):
        plan_groups(MODEL, [replace(TABLE, readout_factor=0.5)], base_width=16)
    with pytest.raises(tiebeam.RangeError, match="does not go as 1/width"):
        plan_groups(MODEL, [replace(TABLE, readout_factor=None)], base_width=16)
    assert plan_groups(MODEL, [replace(TABLE, readout_factor=-0.25)], base_width=16).base_width == 16


def test_a_lookup_factor_that_grows_with_the_width_is_noted() -> None:
    table = replace(TABLE, readout_factor=0.25, lookup_factor=8.0)
    [note] = plan_groups(MODEL, [table], base_width=16).notes
    assert "sqrt(width)" in note


def test_base_width_needs_one_width() -> None:
    other = replace(TABLE, names=("mlp",), width=32, readout_factor=0.25)
    with pytest.raises(tiebeam.RangeError, match="readouts of widths"):
        plan_groups(MODEL, [replace(TABLE, readout_factor=0.25), other], base_width=16)
    with pytest.raises(tiebeam.RangeError, match="no trainable readout"):
        plan_groups(BODY, [], base_width=16)


def test_a_lookup_alone_keeps_the_rate_and_is_not_decayed() -> None:
    plan = plan_groups(MODEL, [replace(TABLE, readouts=(), lr_ratio=1.0)])
    own = group_of(plan, "wte")
    assert (own.kind, own.rate, own.decay) == ("table", 1.0, 0.0)


def test_a_square_matrix_that_is_only_multiplied_stays_with_the_rest() -> None:
    square = replace(TABLE, vocab=64)
    plan = plan_groups(MODEL, [square])
    assert group_of(plan, "wte").kind == "matrices"
    assert "square" in plan.notes[0]


def test_a_plan_is_plain_data() -> None:
    plan = plan_groups(MODEL, [TABLE])
    data = json.loads(json.dumps(plan.to_dict()))
    assert [g["names"] for g in data["groups"]] == [["mlp", "positions"], ["norm"], ["wte"]]
    assert data["optimizer"] == "adamw"


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_rule_covers_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(tiebeam.RangeError) as refused:
        rule(name)
    assert REFUSED[name] in str(refused.value)


@pytest.mark.parametrize(
    ("said", "family"),
    [("Adam8bit", "adam"), ("FusedSGD", "sgd"), ("SparseAdam", "adam"), ("DistributedShampoo", "shampoo"), ("x", None)],
)
def test_a_class_says_its_family(said: str, family: str | None) -> None:
    assert family_of(said) == family


@pytest.mark.parametrize("code", examples.FIRES)
def test_a_finding_on_an_optimizer_speaks_where_it_should(code: str) -> None:
    highest = {e.code: e.severity for e in CATALOG}[code]
    found = [[f for f in optimizer_findings(facts) if f.code == code] for facts in examples.FIRES[code]]
    assert all(len(several) == 1 for several in found)
    assert highest in {f.severity for [f] in found}
    assert all(f.fix or f.hint for [f] in found)


@pytest.mark.parametrize("code", examples.SILENT)
def test_a_finding_on_an_optimizer_is_silent_where_it_should_be(code: str) -> None:
    for facts in examples.SILENT[code]:
        assert code not in {f.code for f in optimizer_findings(facts)}


def test_what_could_not_be_judged_is_noted() -> None:
    facts = examples.facts(examples.BODY, examples.OWN, table=replace(examples.TABLE, lr_ratio=None))
    cut = replace(examples.schedule((1, 8)), whole=False)
    notes = facts_notes(replace(facts, owners={}, schedules=[cut]))
    assert ["was not judged" in n or "is frozen" in n or "was followed for 0 steps" in n for n in notes] == [True] * 3


def test_how_a_table_is_stepped_is_told_in_one_line_for_each_group_that_holds_it() -> None:
    body, own = (replace(g, weight_decay=0.1, eps=1e-8) for g in (examples.BODY, examples.OWN))
    line = "wte: stepped as adamw, rate 8 = 8 times that of the rest, decay 0.1, eps 1e-08"
    assert facts_notes(examples.facts(body, own)) == (line,)
    assert facts_notes(examples.facts(examples.group("mlp", "wte", lr=3e-4))) == (
        "wte: stepped as adamw, rate 0.0003 = 1 times that of the rest",
    )
    assert facts_notes(examples.facts(examples.group("wte", family=None, lr=None))) == (
        "wte: stepped by an optimizer of unknown family",
    )
    assert facts_notes(examples.facts(body, own, own)) == (line, line)
    tried = (replace(g, tried=True) for g in (body, own))
    assert facts_notes(examples.facts(*tried)) == ("wte: stepped as adamw, 8 times as far as the rest in a trial step",)
    assert facts_notes(examples.facts(body)) == ()


def test_rates_that_are_near_enough_are_not_spoken_of() -> None:
    for off, speaks in ((1.4, False), (1.6, True), (1 / 1.4, False), (1 / 1.6, True)):
        facts = examples.facts(examples.BODY, examples.group("wte", lr=examples.C * off))
        assert bool(list(optimizer_findings(facts))) is speaks


def test_a_rule_is_found_by_a_class_what_descends_from_it_and_what_is_made() -> None:
    class AdamW:
        pass

    class Mine(AdamW):
        pass

    def lion(rate: float) -> None:
        """What makes one."""

    assert {rule(kind).name for kind in (AdamW, AdamW(), Mine, Mine())} == {"adamw"}
    assert rule(lion).name == "lion"
    with pytest.raises(tiebeam.RangeError, match="got: optimizer='int'"):
        rule(3)


@pytest.mark.parametrize(
    ("ratio", "rate"), [(1.0000042, 1.0), (7.99998, 8.0), (0.12500001, 0.125), (1.001, 1.001), (3.0, 3.0)]
)
def test_what_eps_takes_from_a_ratio_is_no_part_of_the_rate(ratio: float, rate: float) -> None:
    plan = plan_groups(MODEL, [replace(TABLE, lr_ratio=ratio)], optimizer="adamw")
    assert group_of(plan, "wte").rate == rate
    said = plan_groups(MODEL, [TABLE], optimizer="adamw", ratios={"wte": ratio})
    assert group_of(said, "wte").rate == ratio  # what the caller says is left as it is
