"""The configs and indexes of real models: whether each ties, as transformers 5.24 builds it."""

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.transformers_families import families as as_built

from tiebeam.checkpoints import inspect
from tiebeam.checkpoints.configs import read_config, without_comments
from tiebeam.checkpoints.families import families, family_of, tying_of

ROWS, BUILT = 215, 167


@cache
def rows(shared: Path) -> tuple[dict[str, str], ...]:
    with (shared / "data" / "configs" / "index.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def config_of(name: str, shared: Path) -> dict[str, Any]:
    place = shared / "data" / "configs"
    source, _, model = name.partition("/")
    path = place / "pythia-neox-yml" / f"{model}.yml"
    return read_config(path if path.is_file() else place / "models" / f"{source}__{model}.json")


def test_every_config_is_judged_as_transformers_builds_it(shared: Path) -> None:
    assert len(rows(shared)) == ROWS
    built = {
        r["name"]: r["tied_effective_transformers"] == "True" for r in rows(shared) if r["tied_effective_transformers"]
    }
    assert len(built) == BUILT
    assert {name: tying_of(config_of(name, shared)).effective for name in built} == built


def test_a_config_that_transformers_does_not_build_is_judged_by_its_flag_or_not_at_all(shared: Path) -> None:
    for row in rows(shared):
        if row["tied_effective_transformers"]:
            continue
        tying = tying_of(config_of(row["name"], shared))
        if row["tie_flag_in_file"] == "absent" and tying.family is None:
            assert tying.effective is None, row["name"]
            assert tying.why
        elif tying.family is None:
            assert tying.effective is (row["tie_flag_in_file"] == "True"), row["name"]


INDEXES = {
    "bloom-176b": ("omitted", None, True),
    "cogito-v1-qwen-14b": ("unknown", False, False),
    "devstral-small-2507": ("unknown", False, False),
    "falcon-180b-chat": ("unknown", None, True),
    "gemma-2b-it": ("omitted", None, True),
    "granite-3b-code-instruct-128k": ("omitted", True, True),
    "llama-3.1-8b-instruct-bnb-int8": ("unknown", False, False),
    "llama-3.2-3b": ("omitted", True, True),
    "prymmal-phi3-3b-slerp": ("unknown", False, False),
}


@pytest.mark.parametrize("name", INDEXES)
def test_every_index_is_judged_by_its_names(name: str, shared: Path) -> None:
    place = shared / "data"
    found = inspect(
        place / "index" / f"{name}.model.safetensors.index.json", place / "configs" / "models" / f"hub__{name}.json"
    )
    assert (found.state, found.declared, found.effective) == INDEXES[name]
    assert found.table is not None
    assert (found.readout is None) == (found.state == "omitted")
    codes = [f.code for f in found.findings]
    assert codes == (["tie-not-shown"] if name == "falcon-180b-chat" else [])
    assert found.nbytes


def test_every_index_at_hand_has_a_verdict(shared: Path) -> None:
    files = {p.name.partition(".model.")[0] for p in (shared / "data" / "index").iterdir()}
    assert files == set(INDEXES)


@pytest.mark.zoo
@pytest.mark.wide
def test_the_families_are_as_transformers_has_them(pytestconfig: pytest.Config) -> None:
    """Of the version that is installed; `families.json` is 5.24's, and names it in the docs."""
    right = as_built()
    have = {
        kind: {
            k: v for k, v in (("flags", f.flags), ("inner", f.inner), ("readout", f.readout), ("table", f.table)) if v
        }
        for kind, f in families().items()
    }
    assert have == right


@pytest.mark.parametrize(
    ("config", "declared", "effective"),
    [
        ({"model_type": "llama"}, None, False),
        ({"model_type": "llama", "tie_word_embeddings": None}, None, False),
        ({"model_type": "qwen2_vl", "text_config": {"tie_word_embeddings": True}}, True, True),
        (
            {"model_type": "llava", "tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}},
            None,
            True,
        ),
        ({"model_type": "mistral3", "text_config": {"tie_word_embeddings": False}}, False, True),
        ({"model_type": "encoder-decoder", "decoder": {"model_type": "gpt2"}}, None, True),
        ({"model_type": "encoder-decoder", "decoder": {"model_type": "llama"}}, None, False),
        ({"model_type": "blip-2"}, None, True),
        ({"model_type": "blip-2", "tie_word_embeddings": False}, False, True),
        ({"model_type": "blip-2", "text_config": {"model_type": "llama"}}, None, False),
        ({"model_type": "instructblip", "text_config": {"tie_word_embeddings": False}}, False, False),
        ({"model_type": "llama4", "tie_word_embeddings": True}, True, False),
        ({"model_type": "llama4", "text_config": {"tie_word_embeddings": True}}, True, True),
        ({"model_type": "kosmos-2", "tie_word_embeddings": False}, False, True),
        (
            {"model_type": "kosmos-2", "tie_word_embeddings": False, "text_config": {"tie_word_embeddings": False}},
            False,
            False,
        ),
        ({"model_type": "pix2struct", "tie_word_embeddings": True}, True, True),
        ({"model_type": "blt", "tie_word_embeddings": True}, True, True),
        ({"model_type": "unheard", "text_config": {"tie_word_embeddings": True}}, True, True),
        ({"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}}, None, None),
        ({"untie_embeddings_and_output_weights": True}, False, False),
        ({"logits_via_embedding": True}, True, True),
        ({}, None, None),
        (None, None, None),
    ],
)
def test_scopes_defaults_and_other_names_of_the_flag(
    config: dict[str, Any] | None, declared: bool | None, effective: bool | None
) -> None:
    tying = tying_of(config)
    assert (tying.declared, tying.effective) == (declared, effective), tying
    assert effective is not None or tying.why


def test_a_family_that_ties_whatever_the_flag_says_is_known() -> None:
    t5 = family_of({"model_type": "t5"})
    assert t5 is not None
    assert t5.always
    assert tying_of({"model_type": "t5", "tie_word_embeddings": False}).effective is True


def test_a_config_with_comments_and_a_comma_too_few_is_read() -> None:
    text = '{\n "a": "#1", # one\n "b": [1, 2]\n "c": true, # last\n}'
    assert without_comments(text).split() == ["{", '"a":', '"#1",', '"b":', "[1,", "2],", '"c":', "true", "}"]
