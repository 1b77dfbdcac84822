"""Inputs made from a config or a signature run the model, and stay away from special ids."""

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints.tiny import TINY, captioner, tiny

from tiebeam.checkpoints.example_inputs import from_config, from_signature, token_ids
from tiebeam.errors import InputError

pytestmark = pytest.mark.slow

VISION = {"image_size": 32, "num_channels": 3}


def run(model: Any, inputs: dict[str, np.ndarray[Any, Any]]) -> torch.Tensor:
    with torch.no_grad():
        out = model(**{name: torch.from_numpy(a) for name, a in inputs.items()})
    return getattr(out, "logits", out[0])


@pytest.mark.parametrize("name", TINY)
def test_the_inputs_made_from_a_config_run_the_model(name: str) -> None:
    model = tiny(name)
    inputs = from_config(model.config, model.forward)
    assert inputs is not None
    assert run(model, inputs).shape[:2] == (1, 8)
    special = {getattr(model.config, f"{kind}_token_id", None) for kind in ("pad", "bos", "eos")}
    for ids in (a for a in inputs.values() if a.dtype == np.int64):
        assert ids.shape == (1, 8)
        assert 0 <= ids.min() <= ids.max() < 96
        assert not special & set(ids.ravel().tolist())


@pytest.mark.parametrize("name", [n for n in TINY if n != "T5EncoderModel"])
def test_a_config_alone_is_enough(name: str) -> None:
    model = tiny(name)
    inputs = from_config(model.config.to_dict())
    assert inputs is not None
    assert ("decoder_input_ids" in inputs) is model.config.is_encoder_decoder
    run(model, inputs)


def test_an_image_captioner_is_given_pixels_and_decoder_ids() -> None:
    model = captioner()
    inputs = from_config(model.config, model.forward)
    assert inputs is not None
    assert {name: a.shape for name, a in inputs.items()} == {
        "pixel_values": (1, 3, 32, 32),
        "decoder_input_ids": (1, 8),
    }
    run(model, inputs)


def test_a_vision_language_model_that_must_have_pixels_is_given_both() -> None:
    def forward(input_ids: Any, pixel_values: Any) -> None: ...

    made = from_config({"text_config": {"vocab_size": 64}, "vision_config": VISION}, forward)
    assert made is not None
    assert {name: a.shape for name, a in made.items()} == {
        "input_ids": (1, 8),
        "pixel_values": (1, 3, 32, 32),
    }


def test_a_vision_language_model_that_can_do_without_is_given_text_alone() -> None:
    def forward(input_ids: Any = None, pixel_values: Any = None) -> None: ...

    made = from_config({"text_config": {"vocab_size": 64}, "vision_config": VISION}, forward)
    assert made is not None
    assert list(made) == ["input_ids"]


def test_image_placeholders_and_end_tokens_are_left_out() -> None:
    config = {
        "vocab_size": 12,
        "image_token_id": 3,
        "text_config": {"eos_token_id": [1, 2], "pad_token_id": 0},
    }
    made = from_config(config)
    assert made is not None
    assert set(made["input_ids"].ravel().tolist()) == {4, 5, 6, 7, 8, 9, 10, 11}


def test_a_decoder_with_a_smaller_vocabulary_gets_ids_within_it() -> None:
    made = from_config({"is_encoder_decoder": True, "vocab_size": 5000, "decoder_vocab_size": 9})
    assert made is not None
    assert made["decoder_input_ids"].max() < 9 <= made["input_ids"].max()


def test_a_config_without_a_vocabulary_gives_none() -> None:
    assert from_config({"hidden_size": 8}) is None
    assert from_config(SimpleNamespace(vocab_size=None)) is None


@pytest.mark.parametrize("vocab", [0, -3])
def test_an_empty_vocabulary_is_refused(vocab: int) -> None:
    with pytest.raises(InputError, match=f"vocab {vocab}"):
        from_config({"vocab_size": vocab})


def test_an_input_that_cannot_be_made_is_named() -> None:
    def forward(input_ids: Any, bbox: Any) -> None: ...

    with pytest.raises(InputError, match=r"'bbox'(.|\n)*Hint: pass inputs"):
        from_config({"vocab_size": 64}, forward)


@pytest.mark.parametrize(
    "forward",
    [
        lambda anything: None,
        lambda ids, targets: None,
        lambda input_ids, attention_mask, position_ids, token_type_ids: None,
        lambda src, tgt, *rest, cache=None: None,
    ],
    ids=["one", "targets", "masks", "pair"],
)
def test_a_signature_is_filled_by_what_its_names_say(forward: Any) -> None:
    made = from_signature(forward, vocab=20)
    inspect.signature(forward).bind(*made)
    assert all(a.shape == (1, 8) and a.dtype == np.int64 and 0 <= a.min() <= a.max() < 20 for a in made)


def test_masks_are_ones_and_positions_count() -> None:
    _, mask, positions = from_signature(lambda ids, mask, positions: None, vocab=20, length=3)
    assert mask.tolist() == [[1, 1, 1]]
    assert positions.tolist() == [[0, 1, 2]]


def test_a_signature_whose_names_say_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"\['speaker'\]"):
        from_signature(lambda ids, speaker: None, vocab=20)


@given(
    vocab=st.integers(1, 400),
    length=st.integers(1, 20),
    avoid=st.frozensets(st.integers(-5, 400), max_size=30),
    seed=st.integers(0, 3),
)
def test_ids_are_in_range_distinct_and_not_special_where_that_can_be(
    vocab: int, length: int, avoid: frozenset[int], seed: int
) -> None:
    ids = token_ids(vocab, length=length, avoid=avoid, seed=seed)
    assert ids.shape == (1, length)
    assert 0 <= ids.min() <= ids.max() < vocab
    allowed = set(range(vocab)) - avoid
    assert len(set(ids.ravel().tolist())) == min(length, len(allowed) or vocab)
    assert set(ids.ravel().tolist()) <= (allowed or set(range(vocab)))
    assert np.array_equal(ids, token_ids(vocab, length=length, avoid=avoid, seed=seed))
