"""Laws that hold whatever the model: factors multiply, what is passed through changes nothing, names are names."""

import json
import math
from dataclasses import asdict, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.build import B, Build, D, T, V, model
from tests.core.facts import Fixes, couple, lookup, lookup_table, readout, readout_table, table
from tests.core.look import Arrays, lookup_of, readout_of, table_of, uses_of
from tests.core.test_states import drawn

from tiebeam.core.finding import Finding
from tiebeam.core.findings import Context, findings_of
from tiebeam.core.initialising.init import plan_init
from tiebeam.core.report import Report, TableInit
from tiebeam.core.tables import build_tables

some = settings(max_examples=30)  # where an example is large
PLACES = ("rows", "table", "hidden", "logits")

# Steps that multiply: (how to write it, by what). Powers of two make every product exact.
power = st.integers(-4, 4).map(lambda e: 2.0**e)
signed = st.tuples(power, st.sampled_from([1.0, -1.0])).map(lambda p: p[0] * p[1])


#: How to multiply by a number, and by what it then multiplies.
PRODUCTS: dict[str, tuple[Any, Any]] = {
    "times": (lambda g, x, c: g.mul(x, c), lambda c: c),
    "in front": (lambda g, x, c: g.mul(c, x), lambda c: c),
    "divided": (lambda g, x, c: g.div(x, c), lambda c: 1 / c),
    "by a buffer": (lambda g, x, c: g.mul(x, g.buffer("scale", (1,), number=c)), lambda c: c),
    "negated": (lambda g, x, c: g.neg(x), lambda c: -1.0),
}
SUMS: dict[str, tuple[Any, Any]] = {
    "doubled": (lambda g, x, c: g.add(x, x), lambda c: 2.0),
    "plus a multiple": (lambda g, x, c: g.add(x, g.mul(x, c)), lambda c: 1 + c),
}


def steps_of(laws, numbers):
    """Pairs of a step and what it multiplies by."""

    def bound(law, c):
        write, factor = law
        return (lambda g, x: write(g, x, c)), factor(c)

    return st.builds(bound, st.sampled_from(list(laws.values())), numbers)


multiplying = steps_of(PRODUCTS, signed)
summing = steps_of(SUMS, signed.filter(lambda c: c != -1))

# Steps that the walk passes through.
PASSED = {
    "layout": lambda g, x: g.transpose(g.transpose(x)),
    "cast": lambda g, x: g.cast(x),
    "dropout": lambda g, x: g.dropout(x),
    "mask": lambda g, x: g.mask(x),
    "slice": lambda g, x: g.slice(x, 0, g.shape(x)[0]),
    "reshape": lambda g, x: g.unflatten(g.flatten(x)),
}
passed = st.sampled_from(sorted(PASSED)).map(lambda k: (PASSED[k], 1.0))
on_the_table = st.sampled_from(["layout", "cast", "slice", "dropout"]).map(lambda k: (PASSED[k], 1.0))


def chain(steps):
    def run(g, x):
        for step, _ in steps:
            x = step(g, x)
        return x

    return run


def product(steps):
    return math.prod(c for _, c in steps)


ends = st.lists(st.one_of(multiplying, summing, passed), max_size=5)
backwards = st.lists(st.one_of(multiplying, passed), max_size=5)
own = st.lists(st.one_of(multiplying, on_the_table), max_size=4)


@given(rows=ends, own=own, hidden=backwards, logits=ends)
def test_factors_multiply_exactly_and_keep_their_sign_wherever_they_are_placed(rows, own, hidden, logits):
    g = model(rows=chain(rows), table=chain(own), hidden=chain(hidden), logits=chain(logits))
    assert lookup_of(g).factor == product(rows)
    assert readout_of(g).factor == product(own) * product(hidden) * product(logits)


@given(one=steps_of(PRODUCTS, st.floats(1e-3, 1e3)), place=st.sampled_from(PLACES))
def test_any_number_is_read_to_the_last_digit(one, place):
    step, factor = one
    g = model(**{place: step})
    assert (lookup_of(g) if place == "rows" else readout_of(g)).factor == factor


@given(steps=st.lists(multiplying, max_size=5), split=st.integers(0, 5))
def test_a_factor_counts_the_same_on_either_side_of_the_gather(steps, split):
    """Multiplying the rows, or the table before they are read, is one thing."""
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.gather(chain(steps[:split])(g, w), g.input_ids())
    g.returned(g.norm(chain(steps[split:])(g, x)))
    assert lookup_of(g).factor == product(steps)


@some
@given(
    base=st.tuples(ends, own, backwards, ends),
    inserted=st.fixed_dictionaries({
        "rows": st.lists(passed, max_size=4), "table": st.lists(on_the_table, max_size=3),
        "hidden": st.lists(passed, max_size=4), "logits": st.lists(passed, max_size=4),
    }),
    at=st.integers(0, 5),
)  # fmt: skip
def test_inserting_what_is_passed_through_changes_no_fact(base, inserted, at):
    plain = dict(zip(PLACES, base, strict=True))
    more = {p: [*steps[:at], *inserted[p], *steps[at:]] for p, steps in plain.items()}
    before, after = (model(**{p: chain(s) for p, s in steps.items()}) for steps in (plain, more))
    assert lookup_of(after) == lookup_of(before)
    assert readout_of(after) == readout_of(before)


words = st.text("abcxyz_", min_size=1, max_size=5)
path = st.lists(words, min_size=1, max_size=3).map(".".join)


@some
@given(name=path, head=path, rows=ends, logits=ends, tied=st.booleans())
def test_renaming_parameters_changes_no_number(name, head, rows, logits, tied):
    def numbers(name, head):
        g = model(name=f"{name}.weight", head="" if tied else f"{head}.out", rows=chain(rows), logits=chain(logits))
        weights = Arrays({f"{name}.weight": drawn(0), f"{head}.out": drawn(1)})
        return [anonymous(asdict(t)) for t in build_tables(uses_of(g.graph()), weights, lambda a, b: False, meta=False)]

    assert numbers(name, head) == numbers("embed", "head")


def anonymous(facts):
    """Facts without the texts in them."""
    if isinstance(facts, dict):
        return {k: anonymous(v) for k, v in facts.items() if k not in ("names", "name", "where", "partner")}
    if isinstance(facts, list | tuple):
        return [anonymous(v) for v in facts]
    return facts


# Targets and plans.

factor = st.floats(1e-3, 1e3).flatmap(lambda f: st.sampled_from([f, -f]))
positive = st.floats(1e-3, 1e3)


def measured(rms, **places):
    g = model(**places)
    hidden = next(n.inputs[0] for n in reversed(g.nodes) if n.label == "linear")
    return table_of(g, rms={hidden: rms})


@given(f=factor, a=power)
def test_a_plan_for_a_times_the_factor_is_the_plan_for_the_factor_over_a(f, a):
    (plan,), (scaled,) = (plan_init([table(readout_factor=x)], "analytic") for x in (f, a * f))
    assert scaled.std == plan.std / a
    (plan,), (scaled,) = (plan_init([lookup_table(lookup_factor=x)], "analytic") for x in (f, a * f))
    assert scaled.std == plan.std / a


@given(f=factor, rms=positive, width=st.integers(1, 20_000))
def test_the_rate_ratio_is_the_target_std_in_units_of_one_over_root_width(f, rms, width):
    t = table(readout_factor=f, hidden_rms=rms, width=width)
    assert math.isclose(t.lr_ratio, t.target_std * math.sqrt(width), rel_tol=1e-12)


@given(rms=positive, f=factor)
def test_the_rate_ratio_of_a_traced_table_is_its_target_std_times_root_width(rms, f):
    t = measured(rms, logits=lambda g, z: g.mul(z, f))
    assert math.isclose(t.lr_ratio, t.target_std * math.sqrt(D), rel_tol=1e-12)


@given(a=factor, place=st.sampled_from(["table", "hidden", "logits"]), rms=positive)
def test_scaling_the_readout_by_a_divides_its_target_by_the_size_of_a(a, place, rms):
    """On the hidden state the measured rms grows with it: what counts is the rms where the walk ends."""
    plain = measured(rms)
    scaled = measured(rms * (abs(a) if place == "hidden" else 1), **{place: lambda g, x: g.mul(x, a)})
    assert math.isclose(scaled.target_std, plain.target_std / abs(a), rel_tol=1e-9)
    assert math.isclose(scaled.lr_ratio, plain.lr_ratio / abs(a), rel_tol=1e-9)


@given(f=factor, rms=positive)
def test_a_table_at_its_target_has_unit_logits(f, rms):
    t = table(readout_factor=f, hidden_rms=rms)
    at_target = table(readout_factor=f, hidden_rms=rms, std=t.target_std)
    assert math.isclose(at_target.predicted.logit_std, 1.0, rel_tol=1e-12)
    assert findings_with("init-scale", at_target) == []


def findings_with(code, *tables):
    return [f for f in findings_of(Context(tables=tables, fixes=Fixes())) if f.code == code]


# Reports and rules.

maybe = st.one_of(st.none(), st.floats(1e-6, 1e6))
text = st.text(max_size=12)
lookups = st.builds(
    lookup, where=text, factor=maybe, rms=maybe, count=st.integers(1, 9), norm_after=st.booleans(),
    gradient=st.booleans(), reparametrized=text, notes=st.lists(text, max_size=2).map(tuple),
)  # fmt: skip
readouts = st.builds(
    readout, where=text, factor=maybe, soft_cap=maybe, hidden_rms=maybe, normalized=st.booleans(), logit_std=maybe,
    kappa=st.one_of(st.none(), st.floats(-1, 1)), bias=st.lists(text, max_size=2).map(tuple), gradient=st.booleans(),
    delta=st.lists(text, max_size=2).map(tuple), reparametrized=text,
)  # fmt: skip
facts = {
    "lookup_factor": maybe, "std": st.one_of(st.none(), st.floats(0, 1e3)), "trainable": st.booleans(),
    "fresh": st.one_of(st.none(), st.booleans()), "finite": st.one_of(st.none(), st.booleans()),
    "constant": st.booleans(), "vocab": st.integers(0, 10**6), "width": st.integers(1, 10**4),
    "notes": st.lists(st.sampled_from(["lookup_factor is not known: it is random", "other"]), max_size=2).map(tuple),
}  # fmt: skip
tied_tables = st.builds(
    table, **facts, readout_factor=maybe, hidden_rms=maybe,
    state=st.sampled_from(["tied", "aliased", "cut"]),
    names=st.lists(text.filter(bool), min_size=1, max_size=3, unique=True).map(tuple),
    lookups=st.lists(lookups, min_size=1, max_size=2).map(tuple),
    readouts=st.lists(readouts, min_size=1, max_size=2).map(tuple),
)  # fmt: skip
couples = st.builds(
    couple, st.sampled_from(["untied", "copy", "drifted", "unknown"]), maybe, st.fixed_dictionaries(facts),
    st.fixed_dictionaries({k: s for k, s in facts.items() if k != "lookup_factor"}),
)  # fmt: skip
single = st.one_of(st.builds(lookup_table, **facts), st.builds(readout_table, readout_factor=maybe, hidden_rms=maybe))
several = st.one_of(st.lists(tied_tables, max_size=2).map(tuple), couples, single.map(lambda t: (t,)))
contexts = st.builds(
    Context, tables=several, fixes=st.just(Fixes()), untied_on_purpose=st.booleans(), silent=st.booleans(),
    trainable_elsewhere=st.floats(0, 1), body_dtype=st.sampled_from([None, "float32", "bfloat16"]),
    devices=st.dictionaries(st.sampled_from(["", "embed", "head"]), st.sampled_from(["0", "1", "cpu"])),
)  # fmt: skip


@some
@given(contexts)
def test_findings_are_a_function_of_the_facts(context):
    assert findings_of(context) == findings_of(replace(context, tables=tuple(replace(t) for t in context.tables)))


@some
@given(contexts)
def test_findings_come_errors_first_then_warnings_then_infos(context):
    order = ["error", "warning", "info"]
    ranks = [order.index(f.severity) for f in findings_of(context)]
    assert ranks == sorted(ranks)


@some
@given(contexts)
def test_every_finding_is_about_a_table_of_the_report_or_the_whole_model(context):
    names = {"", *(n for t in context.tables for n in t.names)}
    assert {f.where for f in findings_of(context)} <= names


@some
@given(contexts)
def test_the_rules_change_no_fact(context):
    before = [asdict(t) for t in context.tables]
    findings_of(context)
    assert repr([asdict(t) for t in context.tables]) == repr(before)


@given(std=st.floats(1e-3, 1e3), fresh=st.sampled_from([None, False]))
def test_nothing_is_said_of_the_std_of_a_table_that_is_not_fresh(std, fresh):
    for code in ("init-scale", "logits-small", "own-token"):
        assert findings_with(code, table(std=std, fresh=fresh)) == []


inits = st.builds(
    TableInit, name=text, mode=st.sampled_from(["analytic", "empirical"]), std_before=maybe, std=positive,
    predicted_logit_std=maybe, measured_logit_std=maybe, rounds=st.integers(0, 8), settled=st.booleans(),
    written=st.booleans(), biases=st.lists(text, max_size=2).map(tuple), seed=st.integers(0, 2**63),
    zero_rows=st.lists(st.integers(0, 99), max_size=3).map(tuple),
)  # fmt: skip
findings = st.builds(Finding, text, st.sampled_from(["error", "warning", "info"]), text, text, text, text)
reports = st.builds(
    Report, model=text, framework=text, tables=several, findings=st.lists(findings, max_size=3).map(tuple),
    parameters=st.integers(0, 10**12), meta=st.booleans(), init=st.lists(inits, max_size=2).map(tuple),
    notes=st.lists(text, max_size=2).map(tuple), versions=st.dictionaries(text, text, max_size=2),
)  # fmt: skip


def plain(value):
    """What JSON makes of it: lists for tuples, and NaN (an empty table's ln V) by name so that it equals itself."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@some
@given(reports)
def test_a_report_goes_through_json_and_back(report):
    data = report.to_dict()
    assert plain(json.loads(json.dumps(data))) == plain(data)


@some
@given(reports)
def test_a_report_as_data_holds_every_fact_of_its_tables(report):
    for data, t in zip(report.to_dict()["tables"], report.tables, strict=True):
        assert plain({k: v for k, v in data.items() if k != "tied"}) == plain(asdict(t))
        assert data["tied"] == (t.state in ("tied", "aliased"))


def test_the_steps_that_are_passed_through_keep_their_shape():
    g = Build()
    x = g.input((B, T, D))
    assert all(g.shape(step(g, x)) == (B, T, D) for step in PASSED.values())
