"""What a config or class declares, held against tables: where both agree nothing is said."""

from typing import Any

import pytest
from tests.core.facts import VOCAB, couple, readout, table

from tiebeam.checkpoints.declared import declare
from tiebeam.checkpoints.declared_findings import declared_findings

FLAG = "tie_word_embeddings"
KEYS = {"head.weight": "embed.weight"}
TIED = (table(names=("embed.weight", "head.weight"), readouts=(readout(where="head"),)),)
UNTIED = couple("untied")
GROUP = ("encoder.weight", "decoder.weight")


def found(config: dict[str, Any], tables: Any = TIED, shared: Any = (), **facts: Any) -> list[Any]:
    facts = {"keys": KEYS, "owner": "Model", **facts}
    return list(declared_findings(declare(config, **facts), tables, shared))


FIRES: dict[str, tuple[dict[str, Any], ...]] = {
    "flag-missing": ({"config": {}}, {"config": {}, "tables": UNTIED}),
    "flag-contradicts-tensors": ({"config": {FLAG: False}},),
    "config-scopes-disagree": (
        {"config": {FLAG: True, "text_config": {FLAG: False}}, "keys": None, "owner": ""},
        {"config": {"text_config": {FLAG: True}}, "keys": None, "owner": ""},
    ),
    "misspelt-flag": (
        {"config": {FLAG: True, "tie_word_embedding": False}},
        {"config": {FLAG: True, "text_config": {FLAG: True, "tie_word_embeddngs": False}}},
    ),
    "tied-keys-list": ({"config": {FLAG: True}, "keys": ["head.weight"]},),
    "adapter-wants-tie": (
        {"config": {FLAG: False}, "tables": UNTIED, "peft_config": {"default": {"ensure_weight_tying": True}}},
    ),
    "padded-vocabulary": ({"config": {FLAG: True, "vocab_size": VOCAB - 24}},),
    "undeclared-sharing": ({"config": {FLAG: True}, "shared": (GROUP,)},),
}

SILENT: dict[str, tuple[dict[str, Any], ...]] = {
    "flag-missing": ({"config": {FLAG: False}, "tables": UNTIED}, {"config": {}, "keys": {}}),
    "flag-contradicts-tensors": (
        {"config": {FLAG: True}},
        {"config": {FLAG: False}, "tables": UNTIED},
        {"config": {FLAG: True}, "keys": {}},
    ),
    "config-scopes-disagree": (
        {"config": {FLAG: True, "text_config": {FLAG: False}}},
        {"config": {FLAG: True, "text_config": {FLAG: True}}, "keys": None, "owner": ""},
        {"config": {FLAG: True}, "keys": None, "owner": ""},
    ),
    "misspelt-flag": ({"config": {FLAG: True, "tie_breaker": 1, "hidden_size": 8}},),
    "tied-keys-list": ({"config": {FLAG: True}, "keys": []},),
    "adapter-wants-tie": (
        {"config": {FLAG: True}, "peft_config": {"default": {"ensure_weight_tying": True}}},
        {"config": {FLAG: False}, "tables": UNTIED, "peft_config": {"default": {"ensure_weight_tying": False}}},
    ),
    "padded-vocabulary": (
        {"config": {FLAG: True, "vocab_size": VOCAB}},
        {"config": {FLAG: True, "vocab_size": VOCAB + 24}},
        {"config": {FLAG: True, "vocab_size": 2}, "tables": (table(vocab=5000),)},
    ),
    "undeclared-sharing": (
        {"config": {FLAG: True}, "shared": (("embed.weight", "head.weight"),)},
        {"config": {FLAG: True}, "shared": (GROUP,), "keys": {"decoder.weight": "encoder.weight"}},
    ),
}


def listed(examples):
    return [pytest.param(c, f, id=f"{c}-{i}") for c, all_of in examples.items() for i, f in enumerate(all_of)]


@pytest.mark.parametrize(("code", "facts"), listed(FIRES))
def test_the_rule_speaks(code, facts):
    (one,) = [f for f in found(**facts) if f.code == code]
    assert one.message
    assert one.severity == "info" or one.fix or one.hint


@pytest.mark.parametrize(("code", "facts"), listed(SILENT))
def test_the_rule_is_silent(code, facts):
    assert [f for f in found(**facts) if f.code == code] == []


def test_a_declaration_that_the_tensors_keep_is_not_spoken_of():
    assert found({FLAG: True, "vocab_size": VOCAB}) == []
    assert found({FLAG: False, "vocab_size": VOCAB}, UNTIED) == []


def test_where_nothing_is_declared_nothing_is_said():
    assert list(declared_findings(None, TIED, (GROUP,))) == []


@pytest.mark.parametrize(("tables", "flag"), [(TIED, True), (UNTIED, False)])
def test_the_fix_of_a_missing_flag_is_what_the_tensors_are(tables, flag):
    (one,) = found({}, tables)
    assert one.fix == f"model.config.{FLAG} = {flag}"


def test_a_flag_of_a_nested_scope_is_mended_in_that_scope():
    (one,) = found({"text_config": {FLAG: False}}, scope="text_config")
    assert (one.code, one.fix) == ("flag-contradicts-tensors", f"model.config.text_config.{FLAG} = True")


def test_a_misspelt_flag_of_a_nested_scope_has_no_fix_in_code():
    (one,) = found({FLAG: True, "text_config": {FLAG: True, "tie_word_embedding": False}})
    assert (one.code, one.fix) == ("misspelt-flag", "")
    assert "text_config.tie_word_embedding" in one.message
