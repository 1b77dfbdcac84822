"""Every fix that is printed for any of the small models is run, and mends what it was printed for."""

import warnings

import pytest
from tests.torch.expect import all_of
from tests.torch.models.kit import Builder, Case, load

import tiebeam

pytestmark = pytest.mark.slow

THEMES = [theme for theme in load() if theme != "outputs"]


def fixes(case: Case) -> list[tiebeam.Finding]:
    return [f for f in tiebeam.inspect(case.model, case.inputs).findings if f.fix]


@pytest.mark.parametrize("build", all_of(*THEMES))
def test_a_printed_fix_mends_what_it_was_printed_for(build: Builder) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad=True")
        for finding in fixes(build()):
            case = build()
            scope = {"model": case.model, "inputs": case.inputs, "tiebeam": tiebeam}
            exec(compile(finding.fix, f"fix of {finding.code}", "exec"), scope)
            left = {(f.code, f.where) for f in tiebeam.inspect(scope["model"], case.inputs).findings}
            assert (finding.code, finding.where) not in left, f"{finding.code} is still there:\n{finding.fix}"


def test_an_error_or_a_warning_never_comes_without_a_way_out() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad=True")
        cases = [build() for theme in ("states", "bad", "none") for build in load()[theme].values()]
        findings = [f for case in cases for f in tiebeam.inspect(case.model, case.inputs).findings]
    mute = {f.code for f in findings if f.severity != "info" and not (f.fix or f.hint)}
    assert {f.severity for f in findings} == {"error", "warning", "info"}
    assert not mute
