import dataclasses
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from jsonschema import Draft202012Validator, ValidationError
from tests.reports.examples import EXAMPLES, HEALTHY, TIED, UNHEALTHY

from tiebeam.core.facts import Lookup, Predicted, Readout, Table
from tiebeam.core.finding import Finding
from tiebeam.core.report import Report, TableInit
from tiebeam.reports.jsontext import schema

every_report = pytest.mark.parametrize("report", EXAMPLES.values(), ids=EXAMPLES)


@every_report
def test_a_report_is_what_the_schema_describes(report):
    Draft202012Validator(schema()).validate(json.loads(report.to_json()))


def test_the_schema_is_one_itself():
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(
    ("place", "record"),
    [
        ("finding", Finding),
        ("init", TableInit),
        ("lookup", Lookup),
        ("readout", Readout),
        ("predicted", Predicted),
    ],
)
def test_the_schema_names_every_field_and_no_other(place, record):
    described = schema()["$defs"][place]
    fields = {f.name for f in dataclasses.fields(record)}
    assert set(described["properties"]) == fields
    assert set(described["required"]) == fields


def test_the_schema_names_every_field_of_a_table_and_of_a_report():
    described = schema()
    table = {f.name for f in dataclasses.fields(Table)} | {"tied"}
    assert set(described["$defs"]["table"]["properties"]) == table
    assert set(described["$defs"]["table"]["required"]) == table
    report = {f.name for f in dataclasses.fields(Report)} | {"schema"}
    assert set(described["properties"]) == report
    assert set(described["required"]) == report


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("schema",), 2),
        (("tables", 0, "state"), "shared"),
        (("tables", 0, "lookup_factor"), "1"),
        (("tables", 0, "names"), []),
        (("tables", 0, "predicted", "own_logit_range"), [1.0]),
        (("findings", 0, "severity"), "fatal"),
    ],
)
def test_the_schema_refuses_what_is_no_report(path, wrong):
    data = json.loads(UNHEALTHY.to_json())
    at = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = wrong
    with pytest.raises(ValidationError):
        Draft202012Validator(schema()).validate(data)


def test_what_json_has_no_word_for_is_null():
    table = replace(TIED, std=math.nan, target_std=math.inf, distance=-math.inf, predicted=Predicted(math.nan))
    text = replace(HEALTHY, tables=(table,)).to_json()
    assert not any(token in text for token in ("NaN", "Infinity"))
    found = json.loads(text)["tables"][0]
    assert found["std"] is found["target_std"] is found["distance"] is found["predicted"]["log_vocab"] is None


@every_report
def test_a_finite_report_loses_nothing(report):
    def listed(value):
        if isinstance(value, dict):
            return {k: listed(v) for k, v in value.items()}
        return [listed(v) for v in value] if isinstance(value, list | tuple) else value

    assert json.loads(report.to_json()) == listed(report.to_dict())


def test_keys_are_sorted_and_the_same_report_is_the_same_text():
    keys = list(json.loads(HEALTHY.to_json()))
    assert keys == sorted(keys)
    turned = replace(HEALTHY, versions=dict(reversed(HEALTHY.versions.items())))
    assert turned.to_json() == HEALTHY.to_json()


def test_scalars_of_arrays_become_numbers():
    table = replace(TIED, std=np.float32(0.5), vocab=np.int64(7), finite=np.bool_(True))
    found = json.loads(replace(HEALTHY, tables=(table,)).to_json())["tables"][0]
    assert (found["std"], found["vocab"], found["finite"]) == (0.5, 7, True)
