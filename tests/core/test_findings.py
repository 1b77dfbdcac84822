"""Every rule speaks where it should, with the severity and fix it should, and is silent close by."""

import math

import pytest
from tests.core.facts import ROOT, couple, lookup, lookup_table, readout, readout_table, table
from tests.core.findings_examples import FIRES, HEALTHY, SILENT, case

from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.finding import Finding
from tiebeam.core.findings import in_order
from tiebeam.core.report import Report
from tiebeam.errors import RangeError, UnhealthyTie

OF_THE_MODEL = {"no-table", "no-logits"}  # they are about no table


def listed(examples):
    return [pytest.param(code, c, id=f"{code}: {c.what}") for code, cases in examples.items() for c in cases]


@pytest.mark.parametrize(("code", "example"), listed(FIRES))
def test_the_rule_speaks_of(code, example):
    (found,) = example.findings(code)
    assert found.severity == example.severity
    assert found.message
    assert example.fix is None or found.fix == example.fix
    assert found.where in ({""} if code in OF_THE_MODEL else {n for t in example.tables for n in t.names})


@pytest.mark.parametrize(("code", "example"), listed(SILENT))
def test_the_rule_is_silent_about(code, example):
    assert example.findings(code) == []


def test_nothing_is_said_of_a_healthy_table():
    assert HEALTHY.findings() == []


def test_an_error_or_warning_says_how_to_mend_it_in_code_or_words():
    for code, cases in FIRES.items():
        for example in cases:
            for found in example.findings(code):
                assert found.severity == "info" or found.fix or found.hint, (code, example.what)


def test_a_pair_is_told_of_once():
    assert [f.code for f in case("", *couple("copy", 0.0)).findings()] == ["copy-not-tie"]


def test_a_pair_is_told_of_from_whichever_end_comes_first():
    ends = couple("copy", 0.0)
    assert case("", *ends[::-1]).findings() == case("", *ends).findings()


def test_a_partner_that_is_no_table_of_the_report_is_passed_over():
    assert case("", readout_table(state="copy", partner="gone.weight")).findings() == []


def test_a_copy_of_a_tied_table_is_tied_to_it_and_not_the_other_way_round():
    extra = readout_table("extra.weight", state="copy", partner="embed.weight", distance=0.0)
    for tables in ((table(), extra), (extra, table())):
        (found,) = case("", *tables).findings("copy-not-tie")
        assert (found.where, found.fix) == ("extra.weight", "tie embed.weight to extra.weight")


def test_an_extra_lookup_beside_a_tied_table_is_not_called_its_readout():
    extra = lookup_table("extra.weight", partner="embed.weight", distance=1.4)
    (found,) = case("", table(), extra).findings("untied")
    assert found.where == "extra.weight"
    assert "'extra.weight' the readout" not in found.message


def test_the_loss_is_in_the_message_where_it_is_known():
    (found,) = case("", table(std=1.0)).findings("init-scale")
    t = table(std=1.0)
    assert f"{t.predicted.initial_loss:.1f}" in found.message
    assert f"{math.log(t.vocab):.1f}" in found.message
    assert f"{t.target_std:.4g}" in found.message


def test_both_bounds_of_the_loss_are_in_the_message_where_kappa_is_not_known():
    t = table(std=1.0, readouts=(readout(kappa=None),))
    (found,) = case("", t).findings("init-scale")
    low, high = t.predicted.initial_loss_range
    assert f"the first loss is between {low:.4g} and {high:.4g}" in found.message


def test_a_table_that_holds_no_numbers_worth_judging_is_judged_by_one_rule():
    broken = table(finite=False, std=None, lookup_factor=8.01)
    assert [f.code for f in case("", broken).findings()] == ["non-finite"]


def test_each_cut_role_is_an_error_of_its_own():
    t = table(state="cut", lookups=(lookup(gradient=False),), readouts=(readout(gradient=False, where="head"),))
    messages = [f.message for f in case("", t).findings("gradient-cut")]
    assert len(messages) == 2
    assert "'embed'" in messages[0]
    assert "'head'" in messages[1]


def test_of_many_executions_one_that_is_cut_is_enough():
    t = table(state="cut", readouts=(readout(), readout(where="aux", gradient=False)))
    (found,) = case("", t).findings("gradient-cut")
    assert "'aux'" in found.message


def test_the_device_of_the_closest_module_counts():
    names = {"names": ("a.embed.weight", "a.head.weight"), "readouts": (readout(where="a.head"),)}
    same = case("", table(**names), devices={"": "cpu", "a": "0", "a.head": "0"})
    assert same.findings("split-devices") == []


def test_errors_come_first_then_warnings_then_infos_each_as_found():
    given = [Finding(c, s, "", "") for c, s in [("a", "info"), ("b", "error"), ("c", "warning"), ("d", "error")]]
    assert [f.code for f in in_order(given)] == ["b", "d", "c", "a"]


def test_a_report_is_healthy_where_it_holds_infos_alone():
    findings = tuple(case("", table(readouts=(readout(kappa=0.9),))).findings())
    assert {f.severity for f in findings} == {"info"}
    Report("Model", "none", findings=findings).assert_healthy()


def test_a_report_with_an_error_raises_with_place_and_fix():
    report = Report("Model", "none", findings=tuple(case("", table(std=1.0)).findings()))
    with pytest.raises(UnhealthyTie, match="need mending") as caught:
        report.assert_healthy()
    assert "init-scale at embed.weight" in caught.value.got
    assert caught.value.hint == "initialize"


def test_a_code_that_is_ignored_does_not_raise_and_others_still_do():
    report = Report("Model", "none", findings=tuple(case("", table(std=1.0, constant=True)).findings()))
    report.assert_healthy(ignore={"constant-rows"})
    with pytest.raises(UnhealthyTie):
        report.assert_healthy(ignore={"init-scale"})


def test_rules_are_functions_of_the_facts_alone():
    for example in (c for cases in FIRES.values() for c in cases):
        assert example.findings() == example.findings()


def test_one_code_that_is_let_pass_may_be_a_string_and_is_compared_whole():
    report = Report("Model", "none", findings=(Finding("init-scale", "error", "embed.weight", "too large"),))
    report.assert_healthy(ignore="init-scale")
    with pytest.raises(UnhealthyTie, match="too large"):
        report.assert_healthy(ignore="untied")


@pytest.mark.parametrize("ignore", ["init_scale", "my-init-scale", ["init_scale"], {"drifted", "init-scal"}])
def test_a_code_that_no_finding_has_is_refused_whatever_the_report_holds(ignore):
    findings = (Finding("init-scale", "error", "embed.weight", "too large"),)
    for report in (
        Report("Model", "none"),
        Report("Model", "none", findings=findings),
        CheckpointReport(path="m.safetensors", format="safetensors", state="omitted", findings=findings),
    ):
        with pytest.raises(RangeError, match="no code of a finding") as refused:
            report.assert_healthy(ignore=ignore)
        assert refused.value.hint == "did you mean 'init-scale'?"


def fresh_copies(**changes):
    return couple("copy", 0.0, lookup={"std": 1.0}, readout={"std": 1.0, **changes})


def test_the_fix_of_a_copys_scale_ties_before_it_draws():
    example = case("", *fresh_copies())
    (scale,), (copy,) = example.findings("init-scale"), example.findings("copy-not-tie")
    assert scale.fix == f"{copy.fix}\ninitialize"
    assert "tie it first" in scale.hint


def test_there_is_no_fix_that_would_be_refused_where_a_copy_cannot_be_tied():
    (found,) = case("", *fresh_copies(vocab_axis=1)).findings("init-scale")
    assert (found.fix, "tie it first" in found.hint) == ("", True)


def test_a_copy_on_purpose_is_drawn_alone():
    (found,) = case("", *fresh_copies(), untied_on_purpose=True).findings("init-scale")
    assert (found.fix, found.hint) == ("initialize", "")


def test_a_copy_of_unknown_age_is_tied_first_too():
    (found,) = case("", *fresh_copies(fresh=None)).findings("scale-unsure")
    assert "tie it first" in found.hint


def test_of_one_severity_the_tie_comes_before_the_scale():
    readout = {"std": 2.01 / ROOT}
    found = case("", *couple("copy", 0.0, lookup={"std": 1.0}, readout=readout)).findings()
    assert [f.code for f in found if f.severity == "warning"] == ["copy-not-tie", "init-scale"]
