"""Not one false tie."""

import pytest
from tests.torch.expect import all_of, check, table_of
from tests.torch.models.kit import Builder, load

import tiebeam

TRUE_TIES = {"SequentialRecommender", "MixtureOfSoftmaxesTied"}


@pytest.mark.parametrize("build", [p for p in all_of("none") if p.id not in TRUE_TIES])
def test_a_model_without_a_tied_vocabulary_has_none(build: Builder) -> None:
    case = build()
    report = tiebeam.inspect(case.model, case.inputs)
    assert [t.names for t in report.tables if t.tied] == []
    (truth,) = case.truths
    for name in truth.names:
        table = next(t for t in report.tables if name in t.names)
        assert table.lookups
        assert not table.readouts
    if not truth.names:
        assert report.tables == ()
        assert [(f.code, f.severity) for f in report.findings] == [("no-table", "info")]
    report.assert_healthy()


@pytest.mark.parametrize("name", sorted(TRUE_TIES))
def test_a_tie_is_one_whatever_the_rows_stand_for(name: str) -> None:
    case = load()["none"][name]()
    report = check(case)
    assert table_of(report, case.truths[0]).tied
