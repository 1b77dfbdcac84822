"""Settings that a user changes: what makes sense is run, what makes none is refused before anything runs."""

import math

import pytest

from tiebeam.errors import RangeError
from tiebeam.experiments.catalog import experiment
from tiebeam.experiments.sweep import ask


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("init-stats", {"block": True}, "(?s)'block'.*True.*a whole number"),
        ("init-stats", {"block": 0}, r"(?s)'block'.*1 to 2\*\*63"),
        ("init-stats", {"vocab": 1}, "(?s)'vocab'.*2 to"),
        ("init-stats", {"schemes": ["A", "G"]}, "no scheme is called 'G'"),
        ("rank", {"seeds": [0, -1]}, "(?s)'seeds'.*-1.*0 to"),
        ("rank", {"seeds": [2**63]}, r"(?s)'seeds'.*2\*\*63 - 1"),
        ("alignment", {"rate": math.nan}, "(?s)'rate'.*nan.*a finite number above 0"),
        ("alignment", {"rate": math.inf}, "(?s)'rate'.*inf"),
        ("alignment", {"rate": 10**400}, "(?s)'rate'.*a number"),
        ("repeat-bias", {"steps": -1}, "(?s)'steps'.*1 to"),
        ("lr-transfer", {"rates": [0.0, 0.1]}, "(?s)'rates'.*above 0"),
        ("role-mixing", {"weights": [math.nan]}, "(?s)'weights'.*a finite number$"),
        ("schemes", {"rates": []}, "'rates' of 'schemes' is empty"),
        ("schemes", {"unclipped": ["H"]}, "no scheme is called 'H'"),
        ("late-untie", {"scheme": ""}, "no scheme is called ''"),
        ("factorised", {"variants": ["tied", "both"]}, r"(?s)no variant 'both'.*tied \| untied \|"),
        ("factorised", {"narrow": 64}, "(?s)narrow tables.*64.*at most width, 32"),
        ("std-grid", {"std": [0.1]}, r"(?s)'std'.*\[0.1\].*its least and most"),
    ],
)
def test_settings_without_sense_are_refused_before_any_run(name, changes, said, tmp_path):
    with pytest.raises(RangeError, match=said):
        ask(experiment(name), "smoke", changes, data=["synthetic"] * (experiment(name).needs == "text"), cache=tmp_path)


def test_settings_with_sense_are_not_refused(tmp_path):
    def configs(name, **changes):
        return ask(experiment(name), "smoke", changes, data=["synthetic"], cache=tmp_path).configs

    assert {config["weight"] for config in configs("role-mixing", weights=[-1, 0])} == {-1.0, 0.0}
    plain = configs("schemes", unclipped=[], fast=[])
    assert {config["clip"] for config in plain} == {1.0}
    assert {config["layers"] for config in configs("init-stats", layers=0, vocab=None)} == {0}


def test_a_run_that_is_asked_for_twice_is_one_run(tmp_path):
    """Seed 0 given twice stood in every table as two seeds that agree: 5 ± 0."""
    once, twice = (ask(experiment("rank"), "smoke", {"seeds": s}, cache=tmp_path).configs for s in ([0], [0, 0]))
    assert once == twice
    small = {"schemes": ["A"], "unclipped": [], "rates": [8e-3, 1], "fast": [1.0]}
    asked = ask(experiment("schemes"), "smoke", small, data=["synthetic"], cache=tmp_path)
    assert [config["rate"] for config in asked.configs] == [8e-3, 1.0]
